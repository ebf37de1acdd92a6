"""Equal layers are traced once: later ones return results, and fill a cache entry, like the first.

Layers are equal if their modules, parameter shapes and plain attributes are equal (apart from numbers that are the
layer's position) and if they are called with tensors of the same shapes and a cache entry in the same state. The first
time that a length is run, the last layer of each kind is traced as well; if its ops differ from those of the first,
nothing is folded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from torchgauge.capture.fake_tensor import FakeTensor, Spec, Storage, make_fake
from torchgauge.capture.paths import ModulePaths
from torchgauge.predict.steps import CudaRun

# Modules that define cache classes: their entries are searched for tensors.
_CACHES = ("transformers.cache_utils", "torchgauge.source.gguf_model")
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


class Unequal(Exception):  # noqa: N818 - a signal
    """Layers that looked equal ran different ops."""


@dataclass(slots=True)
class Span:
    """The ops of one traced layer; `paths` are all layers that it represents, `first` the traced one."""

    start: int
    end: int
    paths: list[str]
    first: str


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor of a reference call, one record for each; equal numbers share memory."""

    spec: Spec
    storage: int
    nbytes: int


@dataclass
class _Reference:
    span: Span
    storages: dict[int, int]  # of what the call was given: by id, a number
    output: Any
    entries: list[object] | None  # what the cache holds for the layer after the call; None where others changed too


@dataclass(frozen=True, slots=True)
class _Layer:
    path: str
    position: int
    kind: int
    is_last: bool


class Folding:
    """`watch` puts itself between the model and its repeated layers; `begin` starts a pass. With `checks` the last
    layer of each kind is traced too and compared."""

    def __init__(self, replica: nn.Module, paths: ModulePaths, run: CudaRun, *, enabled: bool) -> None:
        self._run, self._enabled = run, enabled
        self.layers = list(_repeated(replica, paths))
        self.spans: list[Span] = []
        self.cache_of: dict[str, list[tuple[int, int]]] = {}
        self._known: dict[tuple[object, ...], _Reference] = {}
        self.checks = True

    def begin(self) -> None:
        self.spans, self._known = [], {}

    def watch(self, replica: nn.Module) -> Callable[[], None]:
        """Wrap the calls of the layers. To be called inside `watch_modules`, whose wrapper it calls."""
        watched = []
        for layer in self.layers:
            attributes = replica.get_submodule(layer.path).__dict__
            attributes["_compiled_call_impl"] = partial(self._call, layer, attributes["_compiled_call_impl"])
            watched.append(attributes)

        def undo() -> None:
            for attributes in watched:
                attributes.pop("_compiled_call_impl", None)

        return undo

    def _call(self, layer: _Layer, call: Callable[..., object], *args: object, **kwargs: object) -> object:
        entries = _entries((args, kwargs))
        own = [_entry(group, layer.position) for group in entries]
        numbers: dict[int, int] = {}
        shared = tuple(numbers.setdefault(id(t.storage_), len(numbers)) for t in _tensors((args, kwargs, own)))
        key = layer.kind, _description((args, kwargs)), tuple(map(_description, own)), shared
        known = self._known.get(key) if self._enabled else None
        if known is not None and known.entries is not None and not (layer.is_last and self.checks):
            known.span.paths.append(layer.path)
            self.cache_of[layer.path] = [(group, layer.position) for group, _ in self.cache_of[known.span.first]]
            return self._replay(known, layer, entries, args, kwargs)
        return self._trace(key, known, layer, entries, call, args, kwargs)

    def _trace(
        self,
        key: tuple[object, ...],
        known: _Reference | None,
        layer: _Layer,
        entries: list[list[Any]],
        call: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        ops = self._run.recorder.ops
        given = _tensors((args, kwargs, [_entry(group, layer.position) for group in entries]))
        storages: dict[int, int] = {}
        for tensor in given:
            storages.setdefault(id(tensor.storage_), len(storages))
        before = [[_identities(entry) for entry in group] for group in entries]
        outside = _outside((args, kwargs))
        start = len(ops)
        output = call(*args, **kwargs)
        entries = _entries((args, kwargs))
        after = [[_identities(entry) for entry in group] for group in entries]
        changed = {
            (number, place)
            for number, (old, new) in enumerate(zip(before, after, strict=True))
            for place in range(len(new))
            if place >= len(old) or old[place] != new[place]
        }
        is_outside = _outside((args, kwargs)) != outside
        written = {(number, place) for number, place in changed if len(after[number][place]) > 1}  # with tensors
        self.cache_of[layer.path] = sorted(written | ({(0, layer.position)} if is_outside else set()))
        span = Span(start, len(ops), [layer.path], layer.path)
        self.spans.append(span)
        if known is not None:
            first, second = ops[known.span.start : known.span.end], ops[start:]
            are_equal = len(first) == len(second) and all(
                a.signature is b.signature
                or (a.op, a.signature.inputs, a.signature.outputs, a.cost)
                == (b.op, b.signature.inputs, b.signature.outputs, b.cost)
                for a, b in zip(first, second, strict=True)
            )
            if not are_equal:
                raise Unequal
        if known is None:
            numbers, records = dict(storages), dict[int, _Tensor]()
            described = _describe(output, numbers, records)
            own = {place for _, place in changed} <= {layer.position} and not is_outside
            held = [_entry(group, layer.position) for group in entries]
            states = [None if one is None else _describe(vars(one), numbers, records) for one in held] if own else None
            self._known[key] = _Reference(span, storages, described, states)
        del given
        return output

    def _replay(
        self,
        known: _Reference,
        layer: _Layer,
        entries: list[list[Any]],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        recorder = self._run.recorder
        now = len(recorder.ops)
        made: dict[int, Storage] = {}
        given = _tensors((args, kwargs, [_entry(group, layer.position) for group in entries]))
        seen: set[int] = set()
        for tensor in given:
            if id(tensor.storage_) not in seen:
                made[len(seen)] = tensor.storage_
                seen.add(id(tensor.storage_))

        built: dict[int, FakeTensor] = {}  # a cache may hold one tensor as keys and values (DeepSeek V4)

        def build(described: _Tensor) -> FakeTensor:
            if id(described) in built:
                return built[id(described)]
            storage = made.get(described.storage)
            if storage is None:
                storage = made[described.storage] = Storage(
                    described.nbytes, recorder.ledger, writer=max(now - 1, 0), born=now
                )
            built[id(described)] = make_fake(described.spec, storage)
            return built[id(described)]

        output = _rebuilt(known.output, build)
        for group, state in zip(entries, known.entries or (), strict=True):
            if state is None:
                continue
            while len(group) <= layer.position:
                group.append(object.__new__(type(group[0])))
            vars(group[layer.position]).update(_rebuilt(state, build))
        for cache in _caches((args, kwargs)):
            flags = vars(cache).get("is_updated")
            if isinstance(flags, dict):
                flags[layer.position] = True
        return output


def _repeated(replica: nn.Module, paths: ModulePaths) -> Iterator[_Layer]:
    """Members of module lists, the outermost only."""
    lists: list[str] = []
    for path, module in replica.named_modules():
        if isinstance(module, nn.ModuleList) and not any(path.startswith(f"{outer}.") for outer in lists):
            lists.append(path)
            members = list(module)
            kinds = _kinds(members)
            last = {kind: position for position, kind in enumerate(kinds)}
            for position, (member, kind) in enumerate(zip(members, kinds, strict=True)):
                own = paths.path_of(member)
                if own == f"{path}.{position}" or (own == str(position) and not path):
                    yield _Layer(own, position, hash((path, kind)), last[kind] == position)


def _kinds(members: Sequence[nn.Module]) -> list[int]:
    """For each member a number, equal for equal ones. Integers that are the position in every member do not count."""
    facts: list[dict[tuple[str, ...], object]] = []
    for member in members:
        found: dict[tuple[str, ...], object] = {}
        for path, module in member.named_modules():
            found[path, ""] = type(module)
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                found[path, "tensor", name] = tensor.spec if isinstance(tensor, FakeTensor) else None
            for name, kept in module.__dict__.items():
                if name not in ("_parameters", "_buffers", "_modules", "_compiled_call_impl") and "hooks" not in name:
                    found[path, name] = _plain(kept)
        facts.append(found)
    differing: set[tuple[str, ...]] = set()
    for position, own in enumerate(facts):
        for key, value in own.items():
            if type(value) is not int or value != position:
                differing.add(key)
    known: dict[tuple[object, ...], int] = {}
    return [
        known.setdefault(
            tuple((key, value if key in differing else "position") for key, value in own.items()), len(known)
        )
        for own in facts
    ]


def _plain(value: object) -> object:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    return type(value)


_Call = tuple[tuple[object, ...], dict[str, object]]


def _caches(given: _Call) -> Iterator[Any]:
    """Objects in the arguments that hold an entry for each layer."""
    args, kwargs = given
    for item in (*args, *kwargs.values()):
        if type(item) is FakeTensor or isinstance(item, _PLAIN):
            continue  # asking one for an attribute that it lacks takes long
        if hasattr(item, "self_attention_cache") or isinstance(getattr(item, "layers", None), list):
            yield item


def _entries(given: _Call) -> list[list[Any]]:
    """The lists of entries by layer: those for attention to the text, and to what an encoder gave."""
    found = []
    for cache in _caches(given):
        parts = [cache.self_attention_cache, cache.cross_attention_cache] if hasattr(cache, "is_updated") else [cache]
        found += [part.layers for part in parts]
    return found


def _outside(given: _Call) -> list[int]:
    """Tensors that a cache keeps outside its entries, as MiniMax does for linear attention."""
    places = ("layers", "self_attention_cache", "cross_attention_cache")
    found: list[FakeTensor] = []
    for cache in _caches(given):
        for name, kept in vars(cache).items():
            if name not in places:
                _add_tensors(kept, found)
    return [id(tensor) for tensor in found]


def _entry(group: list[Any], position: int) -> Any:
    return group[position] if position < len(group) else None


def _tensors(value: object) -> list[FakeTensor]:
    """The fake tensors in nested containers and cache entries, in order."""
    found: list[FakeTensor] = []
    _add_tensors(value, found)
    return found


def _add_tensors(value: object, found: list[FakeTensor]) -> None:
    kind = type(value)
    if type(value) is FakeTensor:
        found.append(value)
    elif isinstance(value, list | tuple):
        for item in value:
            _add_tensors(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _add_tensors(item, found)
    elif kind not in _PLAIN and kind.__module__.startswith(_CACHES) and not hasattr(value, "layers"):
        _add_tensors(vars(value), found)


def _identities(entry: object) -> tuple[int, ...]:
    return (id(entry), *(id(tensor) for tensor in _tensors(vars(entry))))


def _description(value: object) -> object:
    """A key of everything that a call depends on: structure, shapes, plain values."""
    if type(value) is FakeTensor:
        return value.spec
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return tuple(_description(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _description(item)) for key, item in value.items())
    if hasattr(value, "layers") or hasattr(value, "self_attention_cache"):
        return type(value)  # its entry for the layer is described separately
    if hasattr(value, "__dict__") and not isinstance(value, nn.Module) and not callable(value):
        is_state = bool(_tensors(vars(value))) or type(value).__name__.endswith("Layer")
        return type(value), _description(vars(value)) if is_state else id(value)
    return id(value)


def _describe(value: object, numbers: dict[int, int], records: dict[int, _Tensor]) -> object:
    if type(value) is FakeTensor:
        if id(value) not in records:
            number = numbers.setdefault(id(value.storage_), len(numbers))
            records[id(value)] = _Tensor(value.spec, number, value.storage_.nbytes)
        return records[id(value)]
    if type(value) is dict:
        return {key: _describe(item, numbers, records) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_describe(item, numbers, records) for item in value)
    return value


def _rebuilt(value: Any, build: Callable[[_Tensor], FakeTensor]) -> Any:
    if isinstance(value, _Tensor):
        return build(value)
    if isinstance(value, dict):
        return {key: _rebuilt(item, build) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_rebuilt(item, build) for item in value)
    return value
