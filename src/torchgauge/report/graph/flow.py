"""Which op reads what another one made. Views do no work: they are part of the way between two ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from torchgauge.records import FREE, Capture, OpRecord, TensorSpec, tensor_specs


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor on its way, as the op that reads it sees it. Ops are counted among the steps."""

    source: int
    target: int
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class ModelInput:
    """Inputs that are alike in shape and type cannot be told apart by the ops that read them: they are one."""

    name: str
    spec: TensorSpec
    readers: tuple[int, ...]


@dataclass(slots=True)
class Flow:
    """The steps are the ops of the forward pass that are drawn: all but views and memory that nobody reads.

    `outputs` are the steps that make what the model returns, with what they make."""

    steps: list[OpRecord]
    links: list[Link] = field(default_factory=list)
    inputs: list[ModelInput] = field(default_factory=list)
    outputs: list[tuple[int, TensorSpec]] = field(default_factory=list)


def trace_flow(capture: Capture) -> Flow:
    """Without recorded producers (old files) the steps alone: who reads what is not guessed."""
    forward = [op for op in capture.ops if op.phase == "forward"]
    read = {producer for op in forward for producer in op.producers}
    flow = Flow([op for op in forward if op.category != "view" and (op.status != FREE or op.index in read)])
    if any(op.producers for op in forward):
        _Tracing(capture, flow).trace(forward)
    return flow


class _Tracing:
    """The state of one walk over the ops: for a view, which step made what it shows, or which tensor came in."""

    def __init__(self, capture: Capture, flow: Flow) -> None:
        self.flow = flow
        self.step_of = {op.index: step for step, op in enumerate(flow.steps)}
        self.behind: dict[int, tuple[int | None, TensorSpec | None]] = {}
        self.names: dict[TensorSpec, list[str]] = {}
        for record in capture.inputs:
            self.names.setdefault(_plain(record.spec), []).append(record.name)
        self.readers: dict[TensorSpec, list[int]] = {spec: [] for spec in self.names}
        # What an input looks like through views: records name the op that wrote a tensor, and no op wrote an input.
        self.shown = {spec: spec for spec in self.names}
        self.results = capture.run.results
        self.params = {name: param.spec for param in capture.params for name in (param.name, *param.aliases)}
        self.returned = list(tensor_specs(next(r for r in capture.modules if r.path == "").outputs))

    def trace(self, ops: Iterable[OpRecord]) -> None:
        for op in ops:
            if op.index in self.step_of:
                self._read(op)
            elif op.category == "view":
                self._look_through(op)
        for spec, names in self.names.items():
            self.flow.inputs.append(ModelInput(", ".join(names), spec, tuple(self.readers[spec])))
        self.flow.outputs = self._outputs()

    def _look_through(self, op: OpRecord) -> None:
        source, unmade = self.behind[op.index] = next(iter(self._origins(op)), (None, None))
        given = self._given(unmade) if source is None else None
        if given is not None:
            self.shown |= {_plain(spec): given for spec in op.signature.outputs if _plain(spec) not in self.shown}

    def _given(self, spec: TensorSpec | None) -> TensorSpec | None:
        return None if spec is None else self.shown.get(_plain(spec))

    def _origins(self, op: OpRecord) -> list[tuple[int | None, TensorSpec | None]]:
        """By input: the step that made it and, of a tensor that no op made, what it is; a parameter is neither."""
        weights = [spec for name in op.weights if (spec := self.params.get(name))]
        held = Counter((spec.shape, spec.dtype) for spec in weights)
        sizes = Counter((spec.numel, spec.dtype) for spec in weights)
        origins: list[tuple[int | None, TensorSpec | None]] = []
        for producer, spec in zip(op.producers, op.signature.inputs, strict=False):
            if producer is not None:
                origins.append(self.behind.get(producer, (self.step_of.get(producer), None)))
            elif held[spec.shape, spec.dtype]:
                held[spec.shape, spec.dtype] -= 1
                sizes[spec.numel, spec.dtype] -= 1
                origins.append((None, None))
            elif self._given(spec) is None and sizes[spec.numel, spec.dtype] > 0:
                # A parameter seen through a view, as a transposed one.
                sizes[spec.numel, spec.dtype] -= 1
                origins.append((None, None))
            else:
                origins.append((None, spec))
        return origins

    def _read(self, op: OpRecord) -> None:
        step = self.step_of[op.index]
        for (source, unmade), spec in zip(self._origins(op), op.signature.inputs, strict=False):
            if source is not None:
                self.flow.links.append(Link(source, step, spec))
            elif (given := self._given(unmade)) is not None:
                self.readers[given].append(step)

    def _outputs(self) -> list[tuple[int, TensorSpec]]:
        return self._recorded_outputs() or self._likely_outputs()

    def _recorded_outputs(self) -> list[tuple[int, TensorSpec]]:
        """As what the op wrote last is seen: a result may be written in place or shown through a view."""
        found = []
        for index in self.results:
            step = self.step_of.get(index, self.behind.get(index, (None, None))[0])
            if step is not None and (made := self.flow.steps[step].signature.outputs):
                found.append((step, made[0]))
        return found

    def _likely_outputs(self) -> list[tuple[int, TensorSpec]]:
        """For older files: a step whose result nobody reads and that is as large as something the model returns."""
        read = {link.source for link in self.flow.links}
        wanted = {(spec.numel, spec.dtype) for spec in self.returned}
        return [
            (step, spec)
            for step, op in enumerate(self.flow.steps)
            if step not in read
            for spec in op.signature.outputs[:1]
            if (spec.numel, spec.dtype) in wanted
        ]


def _plain(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.shape, spec.dtype)
