"""`llm`: what a language model is, what a prompt and a token cost, what its cache holds, and what fits where."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from torchgauge.analysis.forecasting import EXECUTIONS
from torchgauge.analysis.isolated import isolation_remarks, needs_isolation, read_data, require_isolated
from torchgauge.analysis.options import chosen_dtype, stored_path, unwrapped
from torchgauge.errors import InputError, UsageError, errors_as_torchgauge
from torchgauge.facts.language import (
    Answer,
    CacheRow,
    CrossoverRow,
    DeviceRow,
    FitRow,
    HeldFacts,
    LayerFacts,
    LlmFacts,
    ModelFacts,
    ModuleCost,
    PassTime,
    PointFacts,
    StepRow,
)
from torchgauge.facts.plausibility import NEAR_THE_ROOF, ROOF_BOUNDS, within_roof
from torchgauge.facts.schema import conform
from torchgauge.isolation import is_isolated
from torchgauge.predict.weight_types import WEIGHT_BITS, check_weights_dtype
from torchgauge.progress import stage
from torchgauge.report.llm import LlmReport, without_modules
from torchgauge.report.predictions import render_fragment
from torchgauge.report.table_rows import frame
from torchgauge.units import parse_sizes

if TYPE_CHECKING:
    import pandas
    import torch

    from torchgauge.hardware.devices import Roof
    from torchgauge.predict.language.passes import Point

CACHE_BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4.5}
CONCURRENT = (1, 8, 64)
_DEFAULT_LORA = (16, "*")
# The default rate for drafted tokens: within the range that Leviathan, Kalman and Matias report for drafts of the
# same family ("Fast inference from transformers via speculative decoding", 2023).
_ACCEPTANCE = 0.7
# A context at which nearly all of a step is weights, and a batch at which every expert is reached.
_SHORT_CONTEXT, _LARGE_BATCH = 16, 1024


@dataclass(frozen=True)
class Speculative:
    """Tokens that something cheaper drafts and one step of the model checks, and how likely each is accepted if those
    before it were."""

    drafts: int
    acceptance: float

    @classmethod
    def parse(cls, asked: int | str) -> Speculative:
        """4, or "4:0.7" with the share that is accepted."""
        count, _, rate = str(asked).partition(":")
        try:
            found = cls(int(count), float(rate) if rate else _ACCEPTANCE)
        except ValueError:
            found = cls(0, 0)
        if found.drafts < 1 or not 0 <= found.acceptance <= 1:
            raise UsageError(
                f"speculative must be N:RATE (drafted tokens, share accepted), such as 4:0.7, not '{asked}'"
            )
        return found

    @property
    def tokens_per_step(self) -> float:
        """Expected: the accepted drafts and one token of the model itself (equation 1 of Leviathan et al., 2023)."""
        if self.acceptance == 1:
            return self.drafts + 1
        return (1 - self.acceptance ** (self.drafts + 1)) / (1 - self.acceptance)


@dataclass(frozen=True)
class Crossover:
    """Where decode turns from memory-bound to compute-bound: its FLOPs per byte, `arithmetic_intensity`, reach the
    device's `ridge` from `batch` sequences on. With None they never do: each sequence adds reads of its own cache, and
    the intensity stays below the one given, however many there are. `flops_each` and `bytes_each` are what one sequence
    more adds to a step."""

    device: str
    context: int
    batch: int | None
    arithmetic_intensity: float
    ridge: float
    flops_each: float
    bytes_each: float


@dataclass(frozen=True)
class Step:
    """One call of the model: a prompt, or one more token for each sequence of the batch.

    `time_s` and the members after it are None without a device. `peak_bytes` is the most that tensors other than the
    weights take, the cache included. The first `prefix` tokens of a prompt were cached before;
    `shared_bytes` is what they take in the cache, once for all sequences. `skipped_flops` are those of scores that a
    causal kernel leaves out; `mfu` is without them. `verdict` says whether the pass fits on the device.
    """

    kind: str
    tokens: int
    batch: int
    macs: int
    flops: int
    bytes_read: int
    bytes_written: int
    weight_bytes: int
    cache_bytes: int
    peak_bytes: int
    modules: list[ModuleCost] = field(repr=False)
    device: str | None = None
    time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    energy_j: float | None = None
    energy_low_j: float | None = None
    energy_high_j: float | None = None
    bound: str | None = None
    mfu: float | None = None
    mbu: float | None = None
    verdict: str | None = None
    skipped_flops: int = 0
    prefix: int = 0
    shared_bytes: int = 0
    speculative: Speculative | None = None

    @property
    def arithmetic_intensity(self) -> float:
        """FLOPs for each byte read or written."""
        return self.flops / max(self.bytes_read + self.bytes_written, 1)

    @property
    def cache_read_bytes(self) -> int:
        """The part of the bytes read that is the cache; a prompt fills it."""
        return min(self.cache_bytes, self.bytes_read - self.weight_bytes) if self.kind == "decode" else 0

    @property
    def rest_bytes(self) -> int:
        """The other bytes read: activations, the cache where it is copied to append to it, and a shared prefix again
        for each further sequence."""
        return self.bytes_read - self.weight_bytes - self.cache_read_bytes

    @property
    def new_tokens(self) -> float:
        """Tokens of all sequences: those of the prompt, or those that a step is expected to give."""
        if self.kind == "prefill":
            return self.batch * (self.tokens - self.prefix)
        return self.batch * (self.speculative.tokens_per_step if self.speculative else 1)

    @property
    def tokens_per_s(self) -> float | None:
        return self.new_tokens / self.time_s if self.time_s else None

    @property
    def joules_per_token(self) -> float | None:
        return self.energy_j / self.new_tokens if self.energy_j is not None else None

    def to_dict(self) -> StepRow:
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "speculative"}
        derived = (
            "arithmetic_intensity", "new_tokens", "tokens_per_s", "joules_per_token", "cache_read_bytes", "rest_bytes",
        )  # fmt: skip
        return cast("StepRow", own | {name: getattr(self, name) for name in derived})


def llm(
    target: str | os.PathLike[str] | torch.nn.Module,
    *,
    context: int | None = None,
    concurrent: int | str | Sequence[int] = CONCURRENT,
    on: str | Sequence[str] | None = None,
    weights_dtype: str | None = None,
    cache_dtype: str | None = None,
    adapter: str | None = None,
    page_size: int = 16,
    speculative: int | str | None = None,
    prefix: int = 0,
    lazy: bool = False,
    execution: str = "eager",
    dtype: torch.dtype | str | None = None,
    code: Any = None,
    allow_pickle: bool = False,
    progress: bool | None = None,
    memory_limit: int | str | None = None,
    time_limit: float | None = None,
    require_isolation: bool = False,
) -> Llm:
    """The costs of a language model: a live model, a config.json or its folder, `hf:…` or a GGUF file.

    The model runs on tensors without data at every requested length: a prompt, then one more token with the cache
    that it returned.

    - `context`, `concurrent`, `on`: context length, numbers of sequences and devices of the reports.
    - `weights_dtype`: store the matrices of layers as "bf16", "fp8", "int4", …; `cache_dtype`: store the cache so.
    - `adapter`: "lora" or "lora:RANK:PATTERN".
    - `page_size`: tokens per cache page.
    - `speculative`: drafted tokens that each decode step checks, with the share that is accepted: "4:0.7". The cost
      of drafting is not included.
    - `prefix`: length of a prompt prefix that all sequences share; it is computed and kept once.
    - `execution`: "eager" (the model's own code, op by op), "graph" (a CUDA graph that is replayed) or "compiled";
      the times are of this, not of a serving engine.
    - `lazy`: open the target on first use.
    - `require_isolation`: refuse a file where a part of the isolation is missing.
    """
    if require_isolation:
        require_isolated(target, allow_pickle=allow_pickle)
    if execution not in EXECUTIONS:
        raise UsageError(f"no execution '{execution}'; one of: {', '.join(EXECUTIONS)}")
    check_weights_dtype(weights_dtype)
    if cache_dtype is not None and cache_dtype not in CACHE_BITS:
        raise UsageError(f"no cache dtype '{cache_dtype}'; one of: {', '.join(CACHE_BITS)}")
    if page_size < 1:
        raise UsageError("page_size must be at least 1")
    many = tuple(size for size in parse_sizes(concurrent, "concurrent") if size is not None)
    if context is not None and context < 1:
        raise UsageError(f"context must be a positive number, not {context}")
    if prefix < 0 or (context is not None and prefix >= context):
        raise UsageError("prefix must be shorter than the context, and not negative")
    kind, _, rest = (adapter or "lora").partition(":")
    rank, _, pattern = rest.partition(":")
    if kind != "lora" or (rest and not rank.isdigit()) or rank == "0":
        raise UsageError(f"adapter must be lora or lora:RANK:PATTERN, such as lora:16:*q_proj.weight, not '{adapter}'")
    trained = None if adapter is None else (int(rank or _DEFAULT_LORA[0]), pattern or _DEFAULT_LORA[1])
    settings = Settings(chosen_dtype(dtype), execution, trained)
    name = os.fspath(target) if isinstance(target, str | os.PathLike) else type(target).__name__
    devices = [] if on is None else [on] if isinstance(on, str) else list(on)
    drafts = None if speculative is None else Speculative.parse(speculative)
    asked = Asked(context, many, tuple(devices), weights_dtype, cache_dtype, page_size, drafts, prefix)
    model = _Model(target, code, allow_pickle, progress)
    if needs_isolation(target, allow_pickle):

        def read(job: Callable[[], Any], check: Callable[[Any], T]) -> T:
            return read_data(
                job,
                [str(stored_path(target))],
                check,
                memory_limit=memory_limit,
                time_limit=time_limit,
                needs_torch=True,
            )

        def ask(settings: Settings, points: Sequence[Point], devices: Sequence[str], *, describes: bool) -> Answer:
            question = partial(model, settings, points, devices, describes=describes)
            return read(question, lambda found: conform(found, Answer, "the answer"))

        def document() -> LlmFacts:
            facts = partial(_read_document, model, name, asked, settings)
            return read(facts, lambda found: conform(found, LlmFacts, "the answer"))

        result = Llm(name, asked, ask, settings, document)
    else:
        result = Llm(name, asked, model, settings)
    if not lazy:
        result.facts  # noqa: B018 - a target that cannot be read is refused here
    return result


T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """How the model is run; what was found out about it saves finding it out again."""

    dtype: torch.dtype | None
    execution: str
    adapter: tuple[int, str] | None
    ops_per_token: float | None = None
    context_limit: int | None = None


class Ask(Protocol):
    """Answers questions about a model."""

    def __call__(
        self, settings: Settings, points: Sequence[Point], devices: Sequence[str], *, describes: bool
    ) -> Answer: ...


def _read_document(model: _Model, name: str, asked: Asked, settings: Settings) -> LlmFacts:
    """Runs in a reader, which opens the file once for the whole document."""
    return Llm(name, asked, model, settings).to_dict()


class _Model:
    """A target that is opened when the first question about it comes, and then kept."""

    def __init__(self, target: Any, code: Any, allow_pickle: bool, progress: bool | None) -> None:
        self._target, self._code, self._allow_pickle, self._progress = target, code, allow_pickle, progress
        self._opened: torch.nn.Module | None = None

    def __call__(
        self, settings: Settings, points: Sequence[Point], devices: Sequence[str], *, describes: bool
    ) -> Answer:
        from torchgauge.analysis.runs import library_of
        from torchgauge.predict.devices import find_device
        from torchgauge.predict.language.answers import Question, answer
        from torchgauge.source import resolve
        from torchgauge.source.process_state import pretended_absent

        library = library_of(find_device(devices[0] if devices else "h200"), None)
        with (
            errors_as_torchgauge(stored_path(self._target)),
            stage("reading the model", shown=self._progress) as report_progress,
        ):
            if self._opened is None:
                # transformers imports scipy for losses of detectors, which takes as long as tracing the model. Once it
                # has been imported it has found scipy, and relies on it.
                unneeded = ("scipy",) if is_isolated() and "transformers" not in sys.modules else ()
                with pretended_absent(*unneeded):
                    source = resolve(
                        unwrapped(self._target),
                        code=self._code,
                        allow_pickle=self._allow_pickle,
                        progress=report_progress,
                    )
                if source.model is None:
                    why = f" ({'; '.join(source.warnings)})" if source.warnings else ""
                    raise InputError(
                        f"weights alone do not say what a token costs: add the code, --as file.py:Net{why}"
                    )
                self._opened = source.model
            question = Question(points, devices, describes=describes, **vars(settings))
            found = answer(self._opened, question, library, report_progress)
            if "warnings" in found:
                found["warnings"] = [*isolation_remarks(), *found["warnings"]]
            return found


@dataclass(frozen=True)
class Asked:
    context: int | None
    concurrent: tuple[int, ...]
    devices: tuple[str, ...]
    weights_dtype: str | None
    cache_dtype: str | None
    page_size: int
    speculative: Speculative | None = None
    prefix: int = 0


@dataclass
class Llm:
    """A language model. It is run on fake tensors at each length that is asked for, and the results are kept."""

    target: str
    asked: Asked
    _ask: Ask = field(repr=False)
    _settings: Settings = field(repr=False)
    _read_document: Callable[[], LlmFacts] | None = field(default=None, repr=False)
    _points: dict[tuple[Point, tuple[str, ...]], PointFacts] = field(default_factory=dict, repr=False)

    @cached_property
    def facts(self) -> ModelFacts:
        found = self._ask(self._settings, [], [], describes=True)
        self._warnings = list(found["warnings"])
        return conform(found["model"], ModelFacts, f"the answer for '{self.target}'")

    @property
    def _known_settings(self) -> Settings:
        facts = self.facts
        return replace(self._settings, ops_per_token=facts["ops_per_token"], context_limit=facts["context_limit"])

    @property
    def params(self) -> int:
        return self.facts["params"]

    @property
    def active_params(self) -> int:
        """The parameters that one token uses; fewer than `params` in a mixture of experts."""
        return self.facts["active_params"]

    @property
    def layers(self) -> list[LayerFacts]:
        """A row for each layer, with its `kind`."""
        return self.facts["layers"]

    @property
    def layer_counts(self) -> dict[str, int]:
        """How many layers there are of each kind."""
        found: Counter[str] = Counter()
        for row in self.layers:
            window = f" {row['window']}" if row.get("window") else ""
            experts = ", mixture of experts" if row["feed_forward"] == "mixture of experts" else ""
            found[f"{row['kind']}{window}{experts}"] += 1
        return dict(found)

    @property
    def context_limit(self) -> int | None:
        return self.facts["context_limit"]

    @property
    def warnings(self) -> list[str]:
        self.facts  # noqa: B018
        return self._warnings

    @property
    def weights_bytes(self) -> int:
        """Parameters and buffers as they are stored, in `weights_dtype` where one was given."""
        facts = self.facts
        total = facts["weight_bytes"] + facts["buffer_bytes"]
        if self.asked.weights_dtype is None:
            return total
        bits = WEIGHT_BITS[self.asked.weights_dtype]
        return total - round(facts["layer_matrix_params"] * (facts["bits_per_weight"] - bits) / 8)

    def cache_bytes(self, tokens: int, sequences: int = 1, encoder_tokens: int = 0) -> int:
        """Bytes of the model's own cache after `tokens` tokens of each sequence; a shared `prefix` counts once."""
        if tokens == 0 and encoder_tokens == 0:
            return 0
        return self._kept(self._point(tokens, sequences, encoder_tokens)["cache"], tokens, sequences)

    def paged_cache_bytes(self, tokens: int, sequences: int = 1) -> int:
        """Bytes of the cache as servers allocate it: in pages of `page_size` tokens; a prefix shares whole pages."""
        from torchgauge.predict.language.capacity import paged_bytes, shared_bytes

        held, page = self._point(tokens, 1, self._encoder(tokens), last_logits=True)["cache"], self.asked.page_size
        paged = paged_bytes(held, tokens, page)
        shared = shared_bytes(held, tokens, min(self.asked.prefix, tokens) // page * page)
        return self._scaled(sequences * paged - (sequences - 1) * shared, held)

    def prefill(
        self, tokens: int, batch: int = 1, on: str | None = None, *, encoder_tokens: int = 0, last_logits: bool = False
    ) -> Step:
        """A prompt of `tokens` for each of `batch` sequences. `last_logits` computes logits for the last token only,
        as in generation."""
        point = self._point(tokens, batch, encoder_tokens, on, last_logits=last_logits)
        return self._step("prefill", point, on)

    def decode(self, context: int, batch: int = 1, on: str | None = None, *, encoder_tokens: int = 0) -> Step:
        """One step for each of `batch` sequences with `context` tokens in the cache: one more token, or the check of
        `speculative` drafts."""
        return self._step("decode", self._point(context, batch, encoder_tokens, on), on)

    def crossover(self, on: str, context: int | None = None) -> Crossover:
        """The number of sequences from which a decode step is bound by arithmetic, not by memory.

        A step's costs are linear in the sequences once every expert is reached, so two steps give the line; that it
        holds is checked at 1, or where it says that decode turns."""
        context = context or self.context
        ridge = self._roof(on).ridge
        low = max((count for count in self.asked.concurrent if 1 < count < _LARGE_BATCH), default=_LARGE_BATCH // 2)
        self._want([(context, count, True) for count in (1, low, _LARGE_BATCH)])

        def work(count: int) -> tuple[int, int]:
            point = self._point(context, count, self._encoder(context), last_logits=True)
            step = self._step("decode", point, None)
            return step.flops, step.bytes_read + step.bytes_written

        def is_bound(count: int) -> bool:
            flops, moved = work(count)
            return flops >= ridge * moved

        (flops_low, moved_low), (flops, moved) = work(low), work(_LARGE_BATCH)
        flops_each = (flops - flops_low) / (_LARGE_BATCH - low)
        moved_each = (moved - moved_low) / (_LARGE_BATCH - low)

        def found(count: int) -> Crossover:
            own_flops, own_moved = work(count)
            return Crossover(on, context, count, own_flops / own_moved, ridge, flops_each, moved_each)

        if is_bound(1):
            return found(1)
        if flops_each <= ridge * moved_each:
            return Crossover(on, context, None, flops_each / moved_each, ridge, flops_each, moved_each)
        gap = ridge * (moved - moved_each * _LARGE_BATCH) - (flops - flops_each * _LARGE_BATCH)
        count = max(ceil(gap / (flops_each - ridge * moved_each)), 1)
        one = flops - flops_each * (_LARGE_BATCH - 1), moved - moved_each * (_LARGE_BATCH - 1)
        if one == work(1):
            return found(count)
        self._want([(context, number, True) for number in (count, max(count - 1, 1))])
        if is_bound(count) and not is_bound(max(count - 1, 1)):
            return found(count)
        return found(_most(lambda number: -1.0 if is_bound(number) else 1.0, max(count, _LARGE_BATCH)) + 1)

    def fits(
        self,
        on: str | Sequence[str] | None = None,
        *,
        contexts: Iterable[int] | None = None,
        concurrent: Iterable[int] | None = None,
    ) -> list[FitRow]:
        """For each device, context and number of concurrent sequences: whether it fits, and what it takes."""
        from torchgauge.predict.devices import find_devices
        from torchgauge.predict.language.capacity import fit_row

        devices = find_devices(on if on is not None else self.asked.devices or "h200")
        lengths = list(contexts) if contexts is not None else self.contexts()
        counts = list(concurrent) if concurrent is not None else list(self.asked.concurrent)
        self._want([(length, count, True) for length in lengths for count in {1, *counts}])
        rows: list[FitRow] = []
        for device in devices:
            for length in lengths:
                alone = self._point(length, 1, self._encoder(length), last_logits=True)
                for count in counts:
                    together = self._point(length, count, self._encoder(length), last_logits=True)
                    cache = self._kept(together["cache_after"], self._after(length), count)
                    rows.append(fit_row(device, length, count, alone, together, cache, self.weights_bytes))
        return rows

    def longest_context(self, on: str, sequences: int = 1) -> int:
        """The longest context that fits on a device for this many sequences, to 64 tokens; 0 if none fits."""
        limit = self.context_limit or 1 << 20
        most = -(-limit // 64)
        known = [-(-length // 64) for length in self.contexts()]
        return min(64 * _most(lambda count: self._room(on, min(64 * count, limit), sequences), most, known), limit)

    def most_sequences(self, on: str, context: int | None = None) -> int:
        """How many sequences of this length fit on a device together; 0 if none does."""
        context = context or self.context
        return _most(lambda count: self._room(on, context, count), 1 << 16, (*self.asked.concurrent, _LARGE_BATCH))

    def _room(self, on: str, context: int, sequences: int) -> float:
        """Bytes that are left if it surely fits; negative if not."""
        row = self.fits(on, contexts=[context], concurrent=[sequences])[0]
        return float(row["capacity_bytes"] - row["high_bytes"])

    def contexts(self) -> list[int]:
        """Lengths that reports show: powers of four up to the limit, the limit, and the one asked for."""
        limit = self.context_limit or 32_768
        found = {length for length in (2048, 8192, 32_768, 131_072) if length < 0.5 * limit} | {min(limit, 1 << 20)}
        return sorted(found | ({self.asked.context} if self.asked.context else set()))

    @property
    def context(self) -> int:
        """The length that reports are made for."""
        return self.asked.context or min(8192, self.context_limit or 8192)

    def _encoder(self, tokens: int) -> int:
        return tokens if self.facts["encoder"] and not self.facts["encoder_fixed"] else 0

    @property
    def _steps(self) -> int:
        """Tokens that a decode step adds to the cache of each sequence."""
        return 1 + (self.asked.speculative.drafts if self.asked.speculative else 0)

    def _after(self, context: int) -> int:
        """Tokens in the cache after a decode step; the last one ends at the limit."""
        return min(context + self._steps, self.context_limit or context + self._steps)

    def _at(self, tokens: int, batch: int, encoder_tokens: int, last_logits: bool) -> Point:
        from torchgauge.predict.language.passes import Point

        prefix = self.asked.prefix if self.asked.prefix < tokens else 0
        return Point(tokens, batch, encoder_tokens, last_logits, prefix, self._steps - 1)

    def _want(self, wanted: Sequence[tuple[int, int, bool]]) -> None:
        """Run several points in one go."""
        distinct = dict.fromkeys(wanted)
        self._run([self._at(tokens, batch, self._encoder(tokens), last) for tokens, batch, last in distinct], ())

    def _run(self, points: Sequence[Point], devices: tuple[str, ...]) -> None:
        fresh = [point for point in points if (point, devices) not in self._points]
        if fresh:
            found = self._ask(self._known_settings, fresh, devices, describes=False)
            self._points |= {(point, devices): row for point, row in zip(fresh, found["points"], strict=True)}

    def _point(
        self, tokens: int, batch: int, encoder_tokens: int, on: str | None = None, *, last_logits: bool = False
    ) -> PointFacts:
        point, devices = self._at(tokens, batch, encoder_tokens, last_logits), (on,) if on is not None else ()
        self._run([point], devices)
        return self._points[point, devices]

    def _kept(self, held: Sequence[HeldFacts], tokens: int, sequences: int) -> int:
        """All of the cache, with a shared prefix once."""
        total = sum(one["bytes"] for one in held)
        return self._scaled(total, held) - self._shared(held, tokens, sequences) * (sequences - 1)

    def _shared(self, held: Sequence[HeldFacts], tokens: int, sequences: int) -> int:
        """The bytes that a prefix takes in the cache of one sequence."""
        from torchgauge.predict.language.capacity import shared_bytes

        prefix = min(self.asked.prefix, tokens)
        return self._scaled(shared_bytes(held, tokens, prefix), held) // sequences if prefix else 0

    def _roof(self, on: str) -> Roof:
        """The roof for the type that the model computes in."""
        from torchgauge.hardware.devices import Roof
        from torchgauge.predict.devices import find_device
        from torchgauge.predict.time import peaks_of_device

        peaks = peaks_of_device(find_device(on))
        rate = peaks.flops_per_s.get(self.facts["dtype"] or "float32") or peaks.flops_per_s["float32"]
        return Roof(rate, float(peaks.bytes_per_s or 0))

    def _scaled(self, total: int, held: Sequence[HeldFacts]) -> int:
        """The bytes in `cache_dtype`, which replaces the model's floating type; states in another type are
        unchanged."""
        if self.asked.cache_dtype is None:
            return total
        floats = [one for one in held if "float" in one["dtype"] and one["name"] not in ("recurrent_states",)]
        if not floats:
            return total
        bits = {"float64": 64, "float32": 32}.get(floats[0]["dtype"], 16)
        share = sum(one["bytes"] for one in floats) / max(sum(one["bytes"] for one in held), 1)
        return round(total * (1 - share) + total * share * CACHE_BITS[self.asked.cache_dtype] / bits)

    def _step(self, kind: str, point: PointFacts, on: str | None) -> Step:
        is_decode = kind == "decode"
        row, held = (point["decode"], point["cache_after"]) if is_decode else (point["prefill"], point["cache"])
        read, weights, modules = row["bytes_read"], row["weight_bytes"], row["modules"]
        if self.asked.weights_dtype is not None:
            share = WEIGHT_BITS[self.asked.weights_dtype] / self.facts["bits_per_weight"]
            saved = round(row["matrix_bytes"] * (1 - share))
            read, weights = read - saved, weights - saved
            modules = [_with_matrices(part, share) for part in modules]
        tokens, batch = point["tokens"], point["batch"]
        tokens = self._after(tokens) if is_decode else tokens
        kept = self._kept(held, tokens, batch)
        if self.asked.cache_dtype is not None and is_decode:
            total = sum(one["bytes"] for one in held)
            saved = total - self._scaled(total, held)
            read -= saved  # a step reads the whole cache
            others = sum(part["bytes_read"] - part["weight_bytes"] for part in modules)
            modules = [_with_cache(part, saved / max(others, 1)) for part in modules]
        step = Step(
            kind,
            point["tokens"],
            batch,
            row["macs"],
            row["flops"],
            read,
            row["bytes_written"],
            weights,
            kept,
            row["peak_bytes"],
            modules,
            device=on,
            skipped_flops=row["skipped_flops"],
            prefix=point["prefix"],
            shared_bytes=self._shared(held, tokens, batch),
            speculative=self.asked.speculative if is_decode else None,
        )
        if on is None or (times := row["times"].get(on)) is None:
            return step
        roof, seconds = self._roof(on), times["time_s"]
        mfu = (row["flops"] - row["skipped_flops"]) / seconds / roof.flops_per_s if seconds else None
        # The times are with weights and cache in the type that the model computes in, and so are these bytes.
        mbu = (row["bytes_read"] + row["bytes_written"]) / seconds / roof.bytes_per_s if seconds else None
        found = replace(step, **times, mfu=within_roof(mfu), mbu=within_roof(mbu))
        is_near = max(found.mfu or 0.0, found.mbu or 0.0) >= NEAR_THE_ROOF
        return found if is_near or found.bound not in ROOF_BOUNDS else replace(found, bound=None)

    def to_dict(self) -> LlmFacts:
        """The data of the reports. A file is opened once for all of it."""
        if self._read_document is not None:
            return self._read_document()
        context, facts = self.context, self.facts
        counts, lengths = list(self.asked.concurrent), self.contexts()
        devices = self.asked.devices or ("h200",)
        turning = [
            (length, count)
            for length in (min(_SHORT_CONTEXT, context), context)
            for count in (1, max(counts), _LARGE_BATCH)
        ]
        wanted = [(length, count) for length in lengths for count in (1, *counts)]
        self._want([(length, count, True) for length, count in (*wanted, *turning)])
        encoder, drafts, adapter = self._encoder(context), self.asked.speculative, self._settings.adapter
        cache: list[CacheRow] = []
        speed: list[StepRow] = []
        for length in lengths:
            point = self._point(length, 1, self._encoder(length), last_logits=True)
            plain, paged = self._kept(point["cache"], length, 1), self.paged_cache_bytes(length)
            cache.append({"tokens": length, "bytes": plain, "paged_bytes": paged, "bytes_per_token": plain / length})
        for device in self.asked.devices:
            steps = [self.prefill(context, on=device, encoder_tokens=encoder, last_logits=True)]
            steps += [self.decode(context, count, on=device, encoder_tokens=encoder) for count in counts]
            room = {row["concurrent"]: row for row in self.fits(device, contexts=[context], concurrent=(1, *counts))}
            speed += [self._if_it_fits(step, room[step.batch]["verdict"]).to_dict() for step in steps]
        return {
            "target": self.target,
            "context": context,
            "concurrent": counts,
            "weights_dtype": self.asked.weights_dtype,
            "cache_dtype": self.asked.cache_dtype,
            "page_size": self.asked.page_size,
            "execution": self._settings.execution,
            "adapter": {"kind": "lora", "rank": adapter[0], "pattern": adapter[1]} if adapter else None,
            "prefix": self.asked.prefix,
            "speculative": {"drafts": drafts.drafts, "acceptance": drafts.acceptance,
                            "tokens_per_step": drafts.tokens_per_step} if drafts else None,
            "model": {**facts, "layer_counts": self.layer_counts, "weights_bytes": self.weights_bytes},
            "cache": cache,
            "prefill": [self.prefill(length, encoder_tokens=self._encoder(length), last_logits=True).to_dict()
                        for length in lengths],
            "decode": [self._step("decode", self._point(length, count, self._encoder(length), last_logits=True),
                                  None).to_dict()
                       for length in lengths for count in counts],
            "speed": speed,
            "fits": self.fits(list(devices)),
            "devices": [self._device_row(device) for device in devices],
            "warnings": self.warnings,
        }  # fmt: skip

    def _if_it_fits(self, step: Step, verdict: str) -> Step:
        """The pass with the verdict; without times where the device has not the memory for it."""
        if verdict != "does not fit":
            return replace(step, verdict=verdict)
        absent: dict[str, Any] = dict.fromkeys((*PassTime.__annotations__, "mfu", "mbu"))
        return replace(step, verdict=verdict, **absent)

    def _device_row(self, device: str) -> DeviceRow:
        row: DeviceRow = {
            "device": device,
            "longest_context": self.longest_context(device),
            "most_sequences": self.most_sequences(device),
            "flops_per_s": None,
            "bytes_per_s": None,
            "ridge": None,
            "crossovers": [],
            "compute_bound_context": None,
        }
        try:
            roof = self._roof(device)
        except UsageError:
            return row
        lengths = sorted({min(_SHORT_CONTEXT, self.context), self.context})
        turning = [self.crossover(device, length) for length in lengths]
        row["flops_per_s"], row["bytes_per_s"], row["ridge"] = roof.flops_per_s, roof.bytes_per_s, roof.ridge
        row["crossovers"] = [cast("CrossoverRow", asdict(one)) for one in turning]
        # The longest context at which enough sequences make decode compute-bound, on the line between the short and the
        # long one; None where not even the short one does.
        short, long = turning[0], turning[-1]
        beyond = [one.flops_each - one.ridge * one.bytes_each for one in (short, long)]
        if beyond[0] > 0:
            share = 1.0 if beyond[1] > 0 else beyond[0] / (beyond[0] - beyond[1])
            row["compute_bound_context"] = round(short.context + (long.context - short.context) * share)
        return row

    def to_dataframe(self) -> pandas.DataFrame:
        """The costs of prefill and decode, a row for each length and batch."""
        facts = self.to_dict()
        return frame(without_modules((*facts["prefill"], *facts["decode"])))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a report; the suffix names the format."""
        LlmReport(self.to_dict()).save(os.fspath(path))

    def __str__(self) -> str:
        return str(LlmReport(self.to_dict()))

    def _repr_html_(self) -> str:
        return render_fragment(LlmReport(self.to_dict()))


def _with_matrices(part: ModuleCost, share: float) -> ModuleCost:
    """A module whose matrices are stored in this share of their bytes."""
    saved = round(part["matrix_bytes"] * (1 - share))
    return {
        **part,
        "bytes_read": part["bytes_read"] - saved,
        "weight_bytes": part["weight_bytes"] - saved,
        "matrix_bytes": part["matrix_bytes"] - saved,
    }


def _with_cache(part: ModuleCost, share: float) -> ModuleCost:
    """A module that reads this share less of what is not weights: nearly all of that is the cache."""
    others = part["bytes_read"] - part["weight_bytes"]
    return {**part, "bytes_read": part["bytes_read"] - round(others * share)}


# Guesses of a line before the range is halved.
_MAX_LINEAR_GUESSES = 6


def _most(room: Callable[[int], float], limit: int, known: Iterable[int] = ()) -> int:
    """The largest number up to a limit for which the room is not negative, assuming the same for all smaller ones;
    otherwise 0. Room is almost linear: a line through two numbers gives the next one to try. For the numbers in `known`
    the room is already computed."""
    values = {number: room(number) for number in sorted({min(number, limit) for number in known} or {1})}
    tried = 0
    while True:
        low = max((number for number, value in values.items() if value >= 0), default=0)
        high = min((number for number, value in values.items() if value < 0), default=limit + 1)
        if high - low <= 1:
            return low
        guess = (low + high) // 2
        near = sorted(values, key=lambda number: min(abs(number - low), abs(number - high)))[:2]
        if tried < _MAX_LINEAR_GUESSES and len(near) == 2 and values[near[0]] != values[near[1]]:
            first, second = near
            guess = floor(first + values[first] * (second - first) / (values[first] - values[second]))
        elif high > limit:
            guess = 2 * max(low, 1)
        guess = min(max(guess, low + 1), high - 1)
        values[guess] = room(guess)
        tried += 1
