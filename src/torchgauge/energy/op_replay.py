"""Ops run repeatedly by themselves, with the tensors they had in a run of the model.

Calls that differ only in their parameters take turns, so that a device's cache holds no more than it would in the
model. On CUDA the calls are put in a graph: the device does not wait for the processor between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchgauge.capture.fake_tensor import dtype_name
from torchgauge.capture.op_call import OpCall, op_info
from torchgauge.capture.structure import map_tensors, storage_key, tensors_in
from torchgauge.energy.attribution import Key, Spec
from torchgauge.errors import first_line
from torchgauge.measure.absence import Absent
from torchgauge.measure.subject import Subject

Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # of one call, by position and by name

# Number of calls that take turns: no cache holds the parameters of all.
_MAX_ALTERNATING_CALLS = 16
# Approximate length of one play, so that reading the meter in between costs nothing.
_PLAY_S = 0.02
_MAX_CALLS_PER_PLAY = 1000


@dataclass(slots=True)
class Calls:
    """Calls of one kind, the arguments of each; activations are those of the first."""

    func: Any
    arguments: list[Arguments] = field(default_factory=list)

    def turns(self, count: int) -> Iterator[Arguments]:
        for number in range(count):
            yield self.arguments[number % len(self.arguments)]


class Collector(TorchDispatchMode):
    """Keeps the calls of the kinds that are wanted, while the model runs."""

    def __init__(self, wanted: Iterable[Key], model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[Key, Calls] = {}
        self._wanted = frozenset(wanted)
        self._names = {key[0] for key in self._wanted}
        self._owned = {storage_key(tensor) for tensor in (*model.parameters(), *model.buffers())}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        info = op_info(func)
        if info.name not in self._names:
            return func(*args, **kwargs)
        call = OpCall(func, info, args, kwargs, list(tensors_in((args, kwargs))))
        specs = tuple(map(_spec, call.read))
        kept = self._kept(call)
        result = func(*args, **kwargs)
        first = next(map(_spec, tensors_in(result)), None)
        self._keep((info.name, info.overload, specs, first), call, kept)
        return result

    def _kept(self, call: OpCall[torch.Tensor]) -> tuple[Any, Any]:
        """Tensors that an op writes to are copied, so the model's own stay unchanged."""
        if not call.info.written:
            return call.args, call.kwargs
        written = set(map(id, call.written))
        return map_tensors((call.args, call.kwargs), lambda t: t.detach().clone() if id(t) in written else t)

    def _keep(self, key: Key, call: OpCall[torch.Tensor], kept: tuple[Any, Any]) -> None:
        if key not in self._wanted:
            return
        calls = self.found.setdefault(key, Calls(call.func))
        if not calls.arguments:
            calls.arguments.append(kept)
        elif len(calls.arguments) < _MAX_ALTERNATING_CALLS and not call.info.written:
            first = list(tensors_in(calls.arguments[0]))
            if len(first) == len(call.tensors):
                shared = iter(first)

                def own(tensor: torch.Tensor) -> torch.Tensor:
                    """A parameter of this call, anything else of the first: one activation is kept, not all."""
                    of_first = next(shared)
                    return tensor if storage_key(tensor) in self._owned else of_first

                calls.arguments.append(map_tensors(kept, own))


def collect(subject: Subject, run: Callable[[], object], wanted: Iterable[Key]) -> dict[Key, Calls]:
    """One real run. The model has run before, so what fails here is memory."""
    collector = Collector(wanted, subject.model)
    with collector:
        run()
    return collector.found


@dataclass(frozen=True, slots=True)
class Play:
    """`run` makes `calls` calls and returns when they are done."""

    run: Callable[[], object]
    calls: int
    is_graph: bool = False


def prepare(calls: Calls, seconds_each: float, device: torch.device) -> Play | Absent:
    """Something that can be run in a loop, or why not."""
    count = max(len(calls.arguments), min(_MAX_CALLS_PER_PLAY, math.ceil(_PLAY_S / max(seconds_each, 1e-7))))

    def loop() -> None:
        with torch.no_grad():
            for args, kwargs in calls.turns(count):
                calls.func(*args, **kwargs)
        synchronize(device)

    play = Play(loop, count)
    try:
        play.run()
        if device.type != "cuda":
            return play
        graph = _graph(calls, count, device)
    # An op may fail outside its model: out of memory, a kernel that needs another state.
    except (RuntimeError, TypeError, ValueError) as error:
        return Absent(f"cannot be run by itself: {first_line(error)}")
    return play if graph is None else replace(play, run=graph, is_graph=True)


def _graph(calls: Calls, count: int, device: torch.device) -> Callable[[], None] | None:
    """None if an op cannot be captured in a graph: it reads values, or allocates without torch's allocator."""
    graph = torch.cuda.CUDAGraph()
    generator, stream = torch.cuda.default_generators[device.index or 0], torch.cuda.current_stream(device)
    random_state = generator.clone_state()
    try:
        with torch.cuda.device(device), torch.no_grad(), torch.cuda.graph(graph):
            for args, kwargs in calls.turns(count):
                calls.func(*args, **kwargs)
    except RuntimeError:
        # Torch leaves its own stream in place then, and the generator as if the capture went on.
        torch.cuda.set_stream(stream)
        generator.graphsafe_set_state(random_state)
        synchronize(device)
        return None

    def play() -> None:
        graph.replay()
        synchronize(device)

    return play


def waiting_play(device: torch.device) -> Play:
    """Almost no work, to measure the power of the device while it waits with its clocks up."""
    tiny, count = torch.zeros(1, device=device), 200

    def play() -> None:
        for _ in range(count):
            tiny.add_(1)
        synchronize(device)

    return Play(play, count)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _spec(tensor: torch.Tensor) -> Spec:
    return tuple(tensor.shape), dtype_name(tensor.dtype)
