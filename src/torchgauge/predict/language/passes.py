"""A language model run on fake tensors: a prompt, then one more token with the cache that the model returned.

The cache is the model's own object, whatever its class: the forward returns it under the name of one of its parameters
(`past_key_values`, `cache_params`, `state`), and it is passed back under that name.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn

from torchgauge.capture import undisturbed, unwrap
from torchgauge.capture.calls import watch_modules
from torchgauge.capture.copier import Copier
from torchgauge.capture.failures import call_model, clear_traceback
from torchgauge.capture.fake_run import swap_tensors
from torchgauge.capture.fake_tensor import DataDependent, FakeTensor, Spec
from torchgauge.capture.leftovers import Leftovers, Variables
from torchgauge.capture.patched_functions import elements_given, real_memory_for_numpy
from torchgauge.capture.paths import ModulePaths
from torchgauge.capture.recorder import Recorder, spec_of
from torchgauge.capture.restored_state import prepared
from torchgauge.capture.run import one_at_a_time, param_records
from torchgauge.capture.values import MAX_ELEMENTS, Knowledge
from torchgauge.errors import InputError
from torchgauge.facts import OpRecord, ParamRecord
from torchgauge.predict.kernels import CudaKernels, Library
from torchgauge.predict.language.folding import Folding, Unequal
from torchgauge.predict.steps import OP, CudaRun, add_adapters
from torchgauge.progress import Progress
from torchgauge.registry import collector_paused
from torchgauge.source.allowed_ops import is_foreign
from torchgauge.source.candidate import Defaults
from torchgauge.source.huggingface_inputs import MAKERS, ModelConfig

# In the name of the parameter that a model's own cache comes back under: past_key_values, cache_params, state, mems.
_CACHE_WORDS = ("past", "cache", "state", "mem")
# Up to this size ids have values, which models may read; larger ones have only a shape.
_MAX_IDS = 1 << 20


@dataclass(frozen=True, slots=True)
class Point:
    """A prompt of `tokens` for each of `batch` sequences, of which the first `prefix` are in the cache already; the
    next step decodes one more token for each and checks `drafts` tokens guessed by something cheaper. The output of the
    prompt is computed for every token, or for the last alone, as generation does where the model allows it."""

    tokens: int
    batch: int = 1
    encoder_tokens: int = 0
    last_logits: bool = False
    prefix: int = 0
    drafts: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Ops that ran once for each of `paths`, which are equal layers; `paths` is empty outside of layers."""

    ops: list[OpRecord]
    paths: list[str]

    @property
    def times(self) -> int:
        return max(len(self.paths), 1)


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of the cache. `layer` is the path of the layer that wrote it, "" where none did."""

    spec: Spec
    name: str
    group: int
    layer: str

    @property
    def nbytes(self) -> int:
        return self.spec.record.numel * self.spec.dtype.itemsize


@dataclass
class Pass:
    """One call of the model: its ops, and its memory without parameters."""

    segments: list[Segment]
    peak_bytes: int  # live at most, what was there before the call included
    before_bytes: int
    after_bytes: int

    @property
    def ops(self) -> Iterator[tuple[OpRecord, int]]:
        for segment in self.segments:
            for op in segment.ops:
                yield op, segment.times


@dataclass
class Observed:
    prefill: Pass
    decode: Pass
    cache: list[Held]  # after the prompt
    cache_after: list[Held]  # after the step that follows it


@dataclass
class Seen:
    """Facts about a model from a session, apart from the passes."""

    params: tuple[ParamRecord, ...]
    layers: list[tuple[str, int, int]]  # path, position, kind
    called: set[str]
    warnings: list[str]
    fed: str


class Encoded(tuple[torch.Tensor]):
    """The encoder's output: models use the first of a tuple, or the fields of a record, most of which are None."""

    __slots__ = ()

    @property
    def last_hidden_state(self) -> torch.Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class Interface:
    """How a model is called: the names of its arguments, from its signature and config."""

    def __init__(self, model: nn.Module, limit: int | None = None) -> None:
        """`limit` is the number of positions where the model was found to have fewer than its config gives."""
        if isinstance(model, torch.jit.ScriptModule):
            raise InputError(
                "a TorchScript file does not say how its cache is passed on: give the model's code or config"
            )
        parameters = inspect.signature(model.forward).parameters
        self.names = list(parameters)
        self.takes_keywords = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        self._found_limit = limit
        self.config = ModelConfig(getattr(model, "config", None))
        self.is_encoder_decoder = self.config.is_encoder_decoder and "decoder_input_ids" in self.names
        self.main = str(getattr(model, "main_input_name", "input_ids"))
        name = type(model).__name__
        self.tokens = "decoder_input_ids" if self.is_encoder_decoder else "input_ids"
        if self.tokens not in self.names:
            raise InputError(f"{name} is not a language model: its forward takes no {self.tokens}")
        if not any(word in given for given in self.names for word in _CACHE_WORDS):
            raise InputError(f"{name} is not autoregressive: its forward takes no cache of earlier tokens")
        required = [
            given
            for given, parameter in parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            and given not in (self.tokens, self.main, "input_ids")
        ]
        if required:
            raise InputError(f"{name} cannot run on text alone: its forward requires {', '.join(required)}")

    @property
    def context_limit(self) -> int | None:
        """Positions that the config gives; relative positions (T5) and states (Mamba) have none."""
        if self._found_limit is not None:
            return self._found_limit
        if self.config.text("relative_attention_num_buckets"):
            return None
        names = ("max_position_embeddings", "max_decoder_position_embeddings", "max_target_positions", "n_positions",
                 "n_ctx", "max_seq_len")  # fmt: skip
        limit: int | None = self.config.text(*names)
        return limit

    def ids(self, batch: int, tokens: int) -> torch.Tensor:
        if batch * tokens > _MAX_IDS:
            return torch.empty(batch, tokens, dtype=torch.int64, device="meta")
        return torch.full((batch, tokens), self.config.ordinary_token())

    def prompt(self, point: Point, dtype: torch.dtype) -> dict[str, object]:
        """The first call: the whole prompt, or its prefix where there is one."""
        given = self._given(self.ids(point.batch, point.prefix or point.tokens), last_logits=point.last_logits)
        if self.is_encoder_decoder and self.main == "input_ids":
            given["input_ids"] = self.ids(point.batch, point.encoder_tokens)
        elif self.is_encoder_decoder and self.main in MAKERS:
            guess = next(iter(MAKERS[self.main](self.config, Defaults(dtype, point.batch))), None)
            if guess is not None:
                given[self.main] = guess.value
        return given

    def fed_back(self, output: Any) -> dict[str, object]:
        """The results of a call that are passed to the next one."""
        named = output if isinstance(output, dict) else vars(output) if hasattr(output, "__dict__") else {}
        return {
            name: value
            for name, value in named.items()
            if (name in self.names or (self.takes_keywords and name == "past_key_values"))
            and value is not None
            and not isinstance(value, torch.Tensor)
        }

    def encoded(self, output: Any) -> Encoded | None:
        hidden = getattr(output, "encoder_last_hidden_state", None)
        return None if hidden is None else Encoded((hidden,))

    def step(self, ids: torch.Tensor, fed: dict[str, object], encoded: Any, *, last_logits: bool) -> dict[str, object]:
        """A call with more tokens after those in the cache."""
        given = {**fed, **self._given(ids, last_logits=last_logits)}
        if encoded is not None and "encoder_outputs" in self.names:
            given["encoder_outputs"] = encoded
        return given

    def _given(self, ids: torch.Tensor, *, last_logits: bool) -> dict[str, object]:
        given: dict[str, object] = {self.tokens: ids}
        if "use_cache" in self.names or "kwargs" in self.names:
            given["use_cache"] = True
        if last_logits and "logits_to_keep" in self.names:
            given["logits_to_keep"] = 1
        return given


def language_part(model: nn.Module) -> tuple[str, nn.Module]:
    """The model, or the largest language model inside it, with its path. BLIP-2 takes no cache itself and requires an
    image: its generation calls the language model that it contains."""
    try:
        Interface(model)
    except InputError:
        parts = []
        for path, module in model.named_modules():
            head = getattr(module, "get_output_embeddings", None)
            if path and callable(head) and head() is not None:
                with suppress(InputError):
                    Interface(module)
                    parts.append((sum(param.numel() for param in module.parameters()), path, module))
        if not parts:
            raise
        _, path, part = max(parts, key=lambda one: one[0])
        return path, part
    return "", model


T = TypeVar("T")
Reduce = Callable[[Point, Observed, tuple[ParamRecord, ...]], T]


def whole_observation(point: Point, observed: Observed, params: tuple[ParamRecord, ...]) -> Observed:
    return observed


def observe(
    model: nn.Module,
    points: Iterable[Point],
    library: Library,
    *,
    dtype: torch.dtype | None = None,
    adapter: tuple[int, str] | None = None,
    fold: bool = True,
    limit: int | None = None,
    progress: Progress | None = None,
    reduce: Reduce[Any] = whole_observation,
) -> tuple[Seen, dict[Point, Any]]:
    """Run the model at every point and leave it unchanged. `adapter` adds low-rank adapters: rank, pattern of names.
    `limit` is the number of positions where it is not the one that the config gives.
    `reduce` turns an observation into the part to keep: a pass has many ops."""
    points = list(points)
    signal: DataDependent | None = None

    def job(way: _Way) -> tuple[Seen, dict[Point, Any]]:
        leftovers = Leftovers()
        try:
            session = _Session(unwrap(model), library, dtype, adapter, limit, leftovers, way)
            return session.run(points, progress, reduce)
        except BaseException as error:
            clear_traceback(error)
            raise
        finally:
            leftovers.release()

    with one_at_a_time, collector_paused(), undisturbed(model):
        for way in _WAYS:
            if (way.assume and signal is None) or (way.fold and not fold):
                continue
            try:
                return contextvars.copy_context().run(job, way)
            except Unequal:
                continue
            except DataDependent as error:
                signal = error
    where = f" in '{signal.module}'" if signal and signal.module else ""
    why = f"{signal.why} ({signal.op}{where})" if signal else "runs different ops in equal layers"
    raise InputError(f"the model {why}, so its cost depends on data")


@dataclass(frozen=True)
class _Way:
    """How a model is run: whether equal layers are folded, up to how many elements tensors have known values
    (positions, masks; a choice of experts takes long), whether values that a model reads may be assumed."""

    fold: bool
    known: int
    assume: bool


_MIN_KNOWN_ELEMENTS = 1 << 14
_WAYS = tuple(_Way(fold, known, assume) for assume in (False, True) for known in (_MIN_KNOWN_ELEMENTS, MAX_ELEMENTS)
              for fold in (True, False))  # fmt: skip


class _LimitedKnowledge(Knowledge):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def has_room(self, elements: int, dtype: torch.dtype) -> bool:
        return elements <= self._limit and super().has_room(elements, dtype)


class _Session:
    def __init__(
        self,
        model: nn.Module,
        library: Library,
        dtype: torch.dtype | None,
        adapter: tuple[int, str] | None,
        limit: int | None,
        leftovers: Leftovers,
        way: _Way,
    ) -> None:
        self.model, self.library, self.dtype, self.leftovers = model, library, dtype, leftovers
        self.adapter, self.way = adapter, way
        self.interface = Interface(model, limit)
        self.limit = self.interface.context_limit
        self.name = type(model).__name__

    def run(self, points: Sequence[Point], progress: Progress | None, reduce: Reduce[T]) -> tuple[Seen, dict[Point, T]]:
        copier = Copier()
        with prepared(self.model, train=False, copier=copier) as replica:
            if self.adapter is not None:
                add_adapters(replica, *self.adapter)
            paths = ModulePaths(replica)
            is_file = any(map(is_foreign, self.model.modules()))
            self.recorder = Recorder(paths, is_foreign=is_file, original_of=copier.original_of)
            self.kernels = CudaKernels(self.library)
            run = CudaRun(self.recorder, self.kernels, assume=self.way.assume, strict=False, channels_last=False)
            run.knowledge = _LimitedKnowledge(self.way.known)
            self.fakes = run
            self.leftovers.watch(run, Variables(copier.code, copier.shared))
            swap_tensors(paths, run, self.dtype)
            params = param_records(paths, lambda tensor: spec_of(run.adopt(tensor)))
            self.folding = Folding(replica, paths, run, enabled=self.way.fold)
            self.replica, self.fed = replica, ""
            self.checked: set[tuple[int, ...]] = set()
            found = {}
            with real_memory_for_numpy(run.lend), elements_given(), watch_modules(paths, self.recorder, run.adopt):
                undo = self.folding.watch(replica)
                try:
                    for place, point in enumerate(points):
                        if progress is not None:
                            progress(place, len(points), f"{point.tokens:,} tokens")
                        found[point] = reduce(point, self.observe(point), params)
                finally:
                    undo()
            called = set(self.recorder.calls)
        layers = [(layer.path, layer.position, layer.kind) for layer in self.folding.layers]
        seen = Seen(params, layers, called, list(self.recorder.warnings), self.fed)
        del self.replica, self.folding, self.fakes, self.kernels, self.recorder  # nothing may hold fake tensors
        return seen, found

    def observe(self, point: Point) -> Observed:
        self.fakes.knowledge.work = 0
        # Equal layers may differ by the length (a window that one of them has), not by the number of sequences.
        length = point.tokens, point.encoder_tokens, point.prefix, point.drafts
        self.folding.checks = length not in self.checked
        self.checked.add(length)
        dtype = self.dtype or next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        admit = Copier(lambda tensor: self.fakes.admit(tensor, dtype=self.dtype))
        output, prefill = self.call(admit.copy(self.interface.prompt(point, dtype)))
        fed = self.interface.fed_back(output)
        if not fed or not any(_held(fed)):
            raise InputError(
                f"{self.name} is not autoregressive, or keeps its state to itself: with use_cache=True its forward "
                "returned no cache to continue from"
            )
        self.fed = next(iter(fed))

        encoded = self.interface.encoded(output)
        del output  # its logits

        def go_on(fed: dict[str, object], tokens: int, *, last_logits: bool = False) -> tuple[dict[str, object], Pass]:
            ids = admit.copy(self.interface.ids(point.batch, tokens))
            output, run = self.call(self.interface.step(ids, fed, encoded, last_logits=last_logits))
            return self.interface.fed_back(output), run

        if point.prefix:
            fed, prefill = go_on(fed, point.tokens - point.prefix, last_logits=point.last_logits)
        cache = self.holdings(fed)
        if self.limit is not None and point.tokens + 1 + point.drafts > self.limit >= 2 + point.drafts:
            # No position is left for the step: use the last one that has room, after a shorter prompt.
            last = self.observe(replace(point, tokens=self.limit - 1 - point.drafts, prefix=0))
            return Observed(prefill, last.decode, cache, last.cache_after)
        fed, decode = go_on(fed, 1 + point.drafts)
        after = self.holdings(fed)
        self.recorder.ops.clear()
        self.fakes.tape.clear()
        return Observed(prefill, decode, cache, after)

    def call(self, given: dict[str, object]) -> tuple[Any, Pass]:
        recorder, tape = self.recorder, self.fakes.tape
        self.folding.begin()
        start, begin, before = len(recorder.ops), len(tape), recorder.ledger.live
        with self.fakes, self.kernels:
            output = call_model(self.replica, (), given, recorder)
        segments, place = [], start
        for span in self.folding.spans:
            if span.start > place:
                segments.append(Segment(recorder.ops[place : span.start], []))
            segments.append(Segment(recorder.ops[span.start : span.end], span.paths))
            place = span.end
        segments.append(Segment(recorder.ops[place:], []))
        # The most that is live during the call, temporaries of kernels included. The workspaces of libraries last: they
        # do not belong to any one pass.
        lasting = frozenset(self.fakes.workspaces.values())
        sizes: dict[int, int] = {}
        live = peak = before
        for place, (number, nbytes) in enumerate(tape):
            if number == OP or number in lasting:
                continue
            change = nbytes if nbytes >= 0 else -sizes.pop(number, 0)
            if nbytes >= 0:
                sizes[number] = nbytes
            if place >= begin:  # what was taken before may be given back
                live += change
                peak = max(peak, live)
        return output, Pass(segments, peak, before, recorder.ledger.live)

    def holdings(self, fed: dict[str, object]) -> list[Held]:
        writers = {place: path for path, places in self.folding.cache_of.items() for place in places}
        return [
            Held(tensor.spec, name, group, writers.get((group, entry), "")) for tensor, name, group, entry in _held(fed)
        ]


def _held(
    value: object, name: str = "", group: int = 0, entry: int = -1, seen: set[int] | None = None
) -> Iterator[tuple[FakeTensor, str, int, int]]:
    """Every tensor of a cache, each once, with its name and the place of the entry that it belongs to."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if type(value) is FakeTensor:
        yield value, name, group, entry
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _held(item, str(key) if isinstance(key, str) else name, group, entry, seen)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _held(item, name, group, place if entry < 0 else entry, seen)
    elif hasattr(value, "__dict__") and not isinstance(value, type | nn.Module | torch.Tensor):
        parts = vars(value)
        if "cross_attention_cache" in parts:
            yield from _held(parts["self_attention_cache"], name, 0, entry, seen)
            yield from _held(parts["cross_attention_cache"], name, 1, entry, seen)
        elif not hasattr(value, "to_dict"):  # a config holds no tensors, and has references to itself
            yield from _held(parts, name, group, entry, seen)
