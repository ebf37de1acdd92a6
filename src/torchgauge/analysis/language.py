"""`llm`: what a language model is, what a prompt and a token cost, what its cache holds, and what fits where."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypedDict

from torchgauge.analysis.isolated import needs_isolation, read_data
from torchgauge.analysis.options import chosen_dtype, stored_path, unwrapped
from torchgauge.errors import InputError, MissingDependencyError, UsageError, errors_as_torchgauge
from torchgauge.progress import stage
from torchgauge.schema import conform

if TYPE_CHECKING:
    import torch

    from torchgauge.language.answers import PointFacts
    from torchgauge.language.passes import Point

# Bits per weight as they are stored, scales and zero points included.
WEIGHT_BITS: dict[str, float] = {
    "fp32": 32, "bf16": 16, "fp16": 16, "int8": 8 + 16 / 4096,  # a scale for each row of some thousand weights
    "fp8": 8 + 32 / 128**2,  # a float32 scale for each block of 128 by 128, as DeepSeek V3 has it
    "int4": 4 + (16 + 4) / 128,  # groups of 128: a 16-bit scale and a 4-bit zero point, as GPTQ and AWQ store them
    "nf4": 4 + 8 / 64 + 32 / (64 * 256),  # bitsandbytes with its scales quantized again
    "mxfp4": 4 + 8 / 32, "nvfp4": 4 + 8 / 16,
}  # fmt: skip
CACHE_BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4.5}
CONCURRENT = (1, 8, 64)
_LORA = (16, "*")


class LayerRow(TypedDict, total=False):
    """`kind` is how the layer mixes tokens, `feed_forward` what it does with each."""

    path: str
    index: int
    kind: str
    feed_forward: str
    heads: int | None
    kv_heads: int
    window: int
    params: int
    matrix_params: int
    active_params: int
    cache_bytes_per_token: float
    cache_fixed_bytes: int


class ModelFacts(TypedDict):
    """What the model is."""

    type: str
    params: int
    active_params: int
    embedding_params: int
    head_params: int
    tied: bool
    vocabulary: int | None
    context_limit: int | None
    positions: str
    dtype: str | None
    weight_bytes: int
    buffer_bytes: int
    bits_per_weight: float
    encoder: bool
    encoder_fixed: bool
    cache_class: str
    layers: list[LayerRow]
    layer_matrix_params: int
    not_run: list[dict[str, Any]]
    loose_cache_bytes: int
    ops_per_token: int


@dataclass(frozen=True)
class Step:
    """One call of the model: a prompt, or a token more for each sequence of the batch.

    `time_s` and what follows it are None without a device. `peak_bytes` is the most that tensors take beside the
    weights, the cache included.
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
    modules: list[dict[str, Any]] = field(repr=False)
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

    @property
    def arithmetic_intensity(self) -> float:
        """FLOPs for each byte read or written."""
        return self.flops / max(self.bytes_read + self.bytes_written, 1)

    @property
    def new_tokens(self) -> int:
        return self.batch * (self.tokens if self.kind == "prefill" else 1)

    @property
    def tokens_per_s(self) -> float | None:
        return self.new_tokens / self.time_s if self.time_s else None

    @property
    def joules_per_token(self) -> float | None:
        return self.energy_j / self.new_tokens if self.energy_j is not None else None

    def to_dict(self) -> dict[str, Any]:
        own = {item.name: getattr(self, item.name) for item in fields(self)}
        derived = ("arithmetic_intensity", "tokens_per_s", "joules_per_token")
        return own | {name: getattr(self, name) for name in derived}


def llm(
    target: str | os.PathLike[str] | torch.nn.Module,
    *,
    context: int | None = None,
    concurrent: int | Sequence[int] = CONCURRENT,
    on: str | Sequence[str] | None = None,
    weights_dtype: str | None = None,
    cache_dtype: str | None = None,
    adapter: str | None = None,
    page_size: int = 16,
    execution: str = "eager",
    dtype: torch.dtype | str | None = None,
    code: Any = None,
    allow_pickle: bool = False,
    progress: bool | None = None,
    memory_limit: int | str | None = None,
    time_limit: float | None = None,
) -> Llm:
    """What a language model costs: a live model, a config.json or its folder, `hf:…`, a GGUF file.

    The model is run on tensors without data, a prompt and then a token more with the cache that it returns itself, at
    every length that is asked for. `context` and `concurrent` are what reports are made for, `on` their devices.
    `weights_dtype` ("bf16", "fp8", "int4", …) is the type that matrices of layers are stored in, `cache_dtype` that of
    the cache, where they are not the model's; `adapter` is "lora" or "lora:RANK:PATTERN".
    """
    if weights_dtype is not None and weights_dtype not in WEIGHT_BITS:
        raise UsageError(f"no weights dtype '{weights_dtype}'; one of: {', '.join(WEIGHT_BITS)}")
    if cache_dtype is not None and cache_dtype not in CACHE_BITS:
        raise UsageError(f"no cache dtype '{cache_dtype}'; one of: {', '.join(CACHE_BITS)}")
    if page_size < 1:
        raise UsageError("page_size must be at least 1")
    many = (concurrent,) if isinstance(concurrent, int) else tuple(concurrent)
    if not many or min(many) < 1 or (context is not None and context < 1):
        raise UsageError("context and concurrent are numbers from 1 on")
    settings = {"dtype": chosen_dtype(dtype), "execution": execution, "adapter": _adapter(adapter)}
    job = partial(_answer, target, code, allow_pickle, progress)
    if needs_isolation(target, allow_pickle):
        path = str(stored_path(target))
        ask = partial(_ask_reader, job, path, memory_limit, time_limit)
    else:
        ask = job
    name = os.fspath(target) if isinstance(target, str | os.PathLike) else type(target).__name__
    devices = [] if on is None else [on] if isinstance(on, str) else list(on)
    asked = Asked(context, many, tuple(devices), weights_dtype, cache_dtype, page_size)
    result = Llm(name, asked, ask, settings)
    result.facts  # noqa: B018 - a target that cannot be read is refused here
    return result


def _adapter(asked: str | None) -> tuple[int, str] | None:
    if asked is None:
        return None
    kind, _, rest = asked.partition(":")
    rank, _, pattern = rest.partition(":")
    if kind != "lora" or (rest and not rank.isdigit()) or rank == "0":
        raise UsageError(f"an adapter is lora or lora:RANK:PATTERN, such as lora:16:*q_proj.weight, not '{asked}'")
    return int(rank or _LORA[0]), pattern or _LORA[1]


def _ask_reader(
    job: Callable[..., Any],
    path: str,
    memory_limit: int | str | None,
    time_limit: float | None,
    settings: Mapping[str, Any],
    points: Sequence[Point],
    devices: Sequence[str],
    *,
    describes: bool,
) -> dict[str, Any]:
    found = read_data(
        partial(job, settings, points, devices, describes=describes),
        paths=[path],
        memory_limit=memory_limit,
        time_limit=time_limit,
        needs_torch=True,
    )
    return conform(found, dict[str, Any], f"what was found about '{path}'")


def _answer(
    target: Any,
    code: Any,
    allow_pickle: bool,
    progress: bool | None,
    settings: Mapping[str, Any],
    points: Sequence[Point],
    devices: Sequence[str],
    *,
    describes: bool,
) -> dict[str, Any]:
    from torchgauge.analysis.runs import library_of
    from torchgauge.language.answers import Question, answer
    from torchgauge.predict.devices import find_device
    from torchgauge.source import resolve

    library = library_of(find_device(devices[0] if devices else "h200"), None)
    with errors_as_torchgauge(stored_path(target)), stage("reading the model", shown=progress) as tell:
        source = resolve(unwrapped(target), code=code, allow_pickle=allow_pickle, progress=tell)
        if source.model is None:
            why = f" ({'; '.join(source.warnings)})" if source.warnings else ""
            raise InputError(f"weights alone do not say what a token costs: add the code, --as file.py:Net{why}")
        question = Question(points, devices, describes=describes, **settings)
        return answer(source.model, question, library, tell)


@dataclass(frozen=True)
class Asked:
    context: int | None
    concurrent: tuple[int, ...]
    devices: tuple[str, ...]
    weights_dtype: str | None
    cache_dtype: str | None
    page_size: int


@dataclass
class Llm:
    """A language model. What is asked for is found by running it on fake tensors at that length, and kept."""

    target: str
    asked: Asked
    _ask: Callable[..., dict[str, Any]] = field(repr=False)
    _settings: Mapping[str, Any] = field(repr=False)
    _points: dict[tuple[Any, tuple[str, ...]], PointFacts] = field(default_factory=dict, repr=False)

    @cached_property
    def facts(self) -> ModelFacts:
        found = self._ask(self._settings, [], [], describes=True)
        self._warnings = list(found["warnings"])
        return conform(found["model"], ModelFacts, f"what was found about '{self.target}'")

    @property
    def _known_settings(self) -> dict[str, Any]:
        return {**self._settings, "ops_per_token": self.facts["ops_per_token"]}

    @property
    def params(self) -> int:
        return self.facts["params"]

    @property
    def active_params(self) -> int:
        """Those that one token reaches; fewer than `params` in a mixture of experts."""
        return self.facts["active_params"]

    @property
    def layers(self) -> list[LayerRow]:
        """A row for each layer, with its `kind`."""
        return self.facts["layers"]

    @property
    def layer_counts(self) -> dict[str, int]:
        """How many layers there are of each kind."""
        return dict(Counter(_kind(row) for row in self.layers))

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
        """What the model's own cache holds after `tokens` tokens of each sequence, in bytes."""
        if tokens == 0 and encoder_tokens == 0:
            return 0
        return self._kept(self._point(tokens, sequences, encoder_tokens)["cache"])

    def paged_cache_bytes(self, tokens: int, sequences: int = 1) -> int:
        """The same as servers allocate it: in pages of `page_size` tokens."""
        from torchgauge.language.capacity import paged_bytes

        held = self._point(tokens, 1, self._encoder(tokens), last_logits=True)["cache"]
        return sequences * self._scaled(paged_bytes(held, tokens, self.asked.page_size), held)

    def prefill(
        self, tokens: int, batch: int = 1, on: str | None = None, *, encoder_tokens: int = 0, last_logits: bool = False
    ) -> Step:
        """A prompt of `tokens` for each of `batch` sequences. `last_logits` makes the output for the last token alone,
        as generation does."""
        point = self._point(tokens, batch, encoder_tokens, on, last_logits=last_logits)
        return self._step("prefill", point, "cache", on)

    def decode(self, context: int, batch: int = 1, on: str | None = None, *, encoder_tokens: int = 0) -> Step:
        """One token more for each of `batch` sequences that have `context` tokens in the cache."""
        return self._step("decode", self._point(context, batch, encoder_tokens, on), "cache_after", on)

    def fits(
        self,
        on: str | Sequence[str] | None = None,
        *,
        contexts: Iterable[int] | None = None,
        concurrent: Iterable[int] | None = None,
    ) -> list[dict[str, Any]]:
        """For each device, context and number of concurrent sequences: whether it fits, and what it takes."""
        from torchgauge.language.capacity import fewest_devices, need
        from torchgauge.predict.devices import find_devices

        devices = find_devices(on if on is not None else self.asked.devices or "h200")
        lengths = list(contexts) if contexts is not None else self.contexts()
        counts = list(concurrent) if concurrent is not None else list(self.asked.concurrent)
        self._want([(length, count, True) for length in lengths for count in {1, *counts}])
        rows = []
        for device in devices:
            for length in lengths:
                alone = self._point(length, 1, self._encoder(length), last_logits=True)
                for count in counts:
                    together = self._point(length, count, self._encoder(length), last_logits=True)
                    cache = self._kept(together["cache_after"])
                    row = need(alone, together, cache, self.weights_bytes).row(device, length, count)
                    row["fewest_devices"] = fewest_devices(row)
                    rows.append(row)
        return rows

    def longest_context(self, on: str, sequences: int = 1) -> int:
        """The longest context that so many sequences may have on a device, to 64 tokens; 0 where none fits."""
        limit = self.context_limit or 1 << 20
        return 64 * _most(lambda count: self._fits_at(on, min(64 * count, limit), sequences), -(-limit // 64))

    def most_sequences(self, on: str, context: int) -> int:
        """How many sequences of a length fit on a device together; 0 where none does."""
        return _most(lambda count: self._fits_at(on, context, count), 1 << 16)

    def _fits_at(self, on: str, context: int, sequences: int) -> bool:
        return self.fits(on, contexts=[context], concurrent=[sequences])[0]["verdict"] == "fits"

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

    def _want(self, wanted: Sequence[tuple[int, int, bool]]) -> None:
        """Run several points in one go."""
        from torchgauge.language.passes import Point

        points = [
            Point(tokens, batch, self._encoder(tokens), last)
            for tokens, batch, last in dict.fromkeys(wanted)
            if (Point(tokens, batch, self._encoder(tokens), last), ()) not in self._points
        ]
        if points:
            found = self._ask(self._known_settings, points, [], describes=False)
            for point, row in zip(points, found["points"], strict=True):
                self._points[point, ()] = row

    def _point(
        self, tokens: int, batch: int, encoder_tokens: int, on: str | None = None, *, last_logits: bool = False
    ) -> PointFacts:
        from torchgauge.language.passes import Point

        point, devices = Point(tokens, batch, encoder_tokens, last_logits), (on,) if on is not None else ()
        if (point, devices) not in self._points:
            found = self._ask(self._known_settings, [point], list(devices), describes=False)
            self._points[point, devices] = found["points"][0]
        return self._points[point, devices]

    def _kept(self, held: list[dict[str, Any]]) -> int:
        return self._scaled(sum(one["bytes"] for one in held), held)

    def _scaled(self, total: int, held: list[dict[str, Any]]) -> int:
        """In `cache_dtype`: floating tensors of the model's type; states kept in another type stay as they are."""
        if self.asked.cache_dtype is None:
            return total
        floats = [one for one in held if "float" in one["dtype"] and one["name"] not in ("recurrent_states",)]
        if not floats:
            return total
        bits = {"float64": 64, "float32": 32}.get(floats[0]["dtype"], 16)
        share = sum(one["bytes"] for one in floats) / max(sum(one["bytes"] for one in held), 1)
        return round(total * (1 - share) + total * share * CACHE_BITS[self.asked.cache_dtype] / bits)

    def _step(self, kind: str, point: PointFacts, cache: str, on: str | None) -> Step:
        row: Any = point[kind]  # type: ignore[literal-required]
        held: Any = point[cache]  # type: ignore[literal-required]
        read, weights = row["bytes_read"], row["weight_bytes"]
        if self.asked.weights_dtype is not None:
            saved = round(row["matrix_bytes"] * (1 - WEIGHT_BITS[self.asked.weights_dtype] / self._matrix_bits))
            read, weights = read - saved, weights - saved
        kept = self._kept(held)
        if self.asked.cache_dtype is not None and kind == "decode":
            read -= sum(one["bytes"] for one in held) - kept  # a step reads the whole cache
        times = dict(row["times"].get(on) or {}) if on is not None else {}
        if on is not None and times.get("time_s"):
            from torchgauge.predict.devices import find_device
            from torchgauge.predict.time import peaks_of_device

            peaks = peaks_of_device(find_device(on))
            rate = peaks.flops_per_s.get(self.facts["dtype"] or "float32") or peaks.flops_per_s.get("float32")
            times["mfu"] = row["flops"] / times["time_s"] / rate if rate else None
            moved = read + row["bytes_written"]
            times["mbu"] = moved / times["time_s"] / peaks.bytes_per_s if peaks.bytes_per_s else None
        step = Step(
            kind,
            point["tokens"],
            point["batch"],
            row["macs"],
            row["flops"],
            read,
            row["bytes_written"],
            weights,
            kept,
            row["peak_bytes"],
            row["modules"],
            device=on,
            **{name: times.get(name) for name in _TIMES},
        )
        return step

    @property
    def _matrix_bits(self) -> float:
        return self.facts["bits_per_weight"]

    def to_dict(self) -> dict[str, Any]:
        """What reports are made from."""
        context, facts = self.context, self.facts
        counts = list(self.asked.concurrent)
        lengths = self.contexts()
        self._want([(length, count, True) for length in lengths for count in {1, *counts}] + [(context, 1, False)])
        devices = self.asked.devices or ("h200",)
        encoder = self._encoder(context)
        return {
            "target": self.target,
            "context": context,
            "concurrent": counts,
            "weights_dtype": self.asked.weights_dtype,
            "cache_dtype": self.asked.cache_dtype,
            "page_size": self.asked.page_size,
            "model": {**facts, "layer_counts": self.layer_counts, "weights_bytes": self.weights_bytes},
            "cache": self._cache_rows(lengths),
            "prefill": [self.prefill(length, encoder_tokens=self._encoder(length), last_logits=True).to_dict()
                        for length in lengths],
            "decode": [self._step("decode", self._point(length, count, self._encoder(length), last_logits=True),
                                  "cache_after", None).to_dict()
                       for length in lengths for count in counts],
            "speed": [row for device in self.asked.devices for row in self._speed(device, context, counts, encoder)],
            "fits": self.fits(list(devices)),
            "warnings": self.warnings,
        }  # fmt: skip

    def _cache_rows(self, lengths: Sequence[int]) -> list[dict[str, Any]]:
        rows = []
        for length in lengths:
            point = self._point(length, 1, self._encoder(length), last_logits=True)
            plain = self._kept(point["cache"])
            rows.append(
                {"tokens": length, "bytes": plain, "paged_bytes": self.paged_cache_bytes(length),
                 "bytes_per_token": plain / length}
            )  # fmt: skip
        return rows

    def _speed(self, device: str, context: int, counts: Sequence[int], encoder: int) -> Iterable[dict[str, Any]]:
        yield self.prefill(context, on=device, encoder_tokens=encoder, last_logits=True).to_dict()
        for count in counts:
            yield self.decode(context, count, on=device, encoder_tokens=encoder).to_dict()

    def to_dataframe(self) -> Any:
        """The costs of prefill and decode, a row for each length and batch."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingDependencyError("pandas", "a DataFrame") from error
        document = self.to_dict()
        rows = [{name: value for name, value in row.items() if name != "modules"}
                for row in (*document["prefill"], *document["decode"])]  # fmt: skip
        return pd.DataFrame.from_records(rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a report; the suffix says which: .txt, .json, .csv, .md, .tex, .html."""
        from torchgauge.report.llm import save_llm

        save_llm(llm_document(self), os.fspath(path))

    def __str__(self) -> str:
        from torchgauge.report.layout import plain
        from torchgauge.report.llm import llm_report

        return plain(llm_report(llm_document(self), 100))


def _most(fits: Callable[[int], bool], limit: int) -> int:
    """The largest number up to a limit that fits, if all smaller ones do."""
    low, high = 0, 1
    while high <= limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


_TIMES = ("time_s", "low_s", "high_s", "energy_j", "energy_low_j", "energy_high_j", "bound", "mfu", "mbu")


def _kind(row: LayerRow) -> str:
    window = f" {row['window']}" if row.get("window") else ""
    experts = ", mixture of experts" if row["feed_forward"] == "mixture of experts" else ""
    return f"{row['kind']}{window}{experts}"


def llm_document(found: Llm) -> dict[str, Any]:
    """As JSON has it."""
    from torchgauge import __version__

    return {
        "schema_version": 1,
        "tool": {"name": "torchgauge", "version": __version__},
        "llm": found.to_dict(),
    }
