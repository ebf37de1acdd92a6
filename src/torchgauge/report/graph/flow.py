"""Which op reads what another one made. Views do no work: they are part of the way between two ops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torchgauge.facts import FREE, Capture, InputRecord, OpRecord, TensorSpec, tensor_specs


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor on its way, as the op that reads it sees it. Ops are counted among the steps."""

    source: int
    target: int
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One tensor that the model is given, maybe under several names."""

    name: str
    spec: TensorSpec
    readers: tuple[int, ...]


@dataclass(slots=True)
class Flow:
    """The steps are the ops of the forward pass that are drawn: all but views and memory that is never read.

    `outputs` are the steps that make what the model returns, with what they make."""

    steps: list[OpRecord]
    links: list[Link] = field(default_factory=list)
    inputs: list[ModelInput] = field(default_factory=list)
    outputs: list[tuple[int, TensorSpec]] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """Whether the file records which op reads which output."""
        return bool(self.links or self.inputs or self.outputs)


def trace_flow(capture: Capture) -> Flow:
    """Data flow is not guessed: files without it give the steps alone, or a graph without inputs."""
    forward = [op for op in capture.ops if op.phase == "forward"]
    read = {producer for op in forward for producer in op.producers}
    flow = Flow([op for op in forward if op.category != "view" and (op.status != FREE or op.index in read)])
    if any(op.producers for op in forward):
        _Tracing(capture, flow).trace(forward)
    return flow


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a tensor comes from: the step that made it, or the number of the input; neither for all else."""

    step: int | None = None
    given: int | None = None


class _Tracing:
    """The state of one walk over the ops. `behind` has the origin of what a view shows, for views that count as
    writing memory themselves."""

    def __init__(self, capture: Capture, flow: Flow) -> None:
        self.flow = flow
        self.step_of = {op.index: step for step, op in enumerate(flow.steps)}
        self.behind: dict[int, _Origin] = {}
        # The inputs that anything reads; those with the same readers are one tensor.
        tensors: dict[tuple[tuple[int, int], ...], list[InputRecord]] = {}
        for record in capture.inputs:
            if record.readers:
                tensors.setdefault(record.readers, []).append(record)
        self.tensors = list(tensors.values())
        self.given = {reader: n for n, names in enumerate(self.tensors) for reader in names[0].readers or ()}
        self.readers: list[list[int]] = [[] for _ in self.tensors]
        self.results = capture.run.results
        self.returned = list(tensor_specs(next(r for r in capture.modules if r.path == "").outputs))

    def trace(self, ops: Iterable[OpRecord]) -> None:
        for op in ops:
            if op.index in self.step_of:
                step = self.step_of[op.index]
                for place, spec in enumerate(op.signature.inputs):
                    origin = self._origin(op, place)
                    if origin.step is not None:
                        self.flow.links.append(Link(origin.step, step, spec))
                    elif origin.given is not None:
                        self.readers[origin.given].append(step)
            elif op.category == "view":
                self.behind[op.index] = self._origin(op, 0)
        for names, readers in zip(self.tensors, self.readers, strict=True):
            name = ", ".join(record.name for record in names)
            self.flow.inputs.append(ModelInput(name, names[0].spec, tuple(readers)))
        # An output is what the op wrote last: a result may be written in place or shown through a view.
        for index in self.results:
            made_by = self.step_of.get(index, self.behind.get(index, _Origin()).step)
            if made_by is not None and (made := self.flow.steps[made_by].signature.outputs):
                self.flow.outputs.append((made_by, made[0]))
        self.flow.outputs = self.flow.outputs or self._likely_outputs()

    def _origin(self, op: OpRecord, place: int) -> _Origin:
        """Where one of the inputs of an op comes from."""
        producer = op.producers[place] if place < len(op.producers) else None
        if producer is None:
            return _Origin(given=self.given.get((op.index, place)))
        return self.behind.get(producer) or _Origin(self.step_of.get(producer))

    def _likely_outputs(self) -> list[tuple[int, TensorSpec]]:
        """For older files: a step whose result is never read and that is as large as something the model returns."""
        read = {link.source for link in self.flow.links}
        wanted = {(spec.numel, spec.dtype) for spec in self.returned}
        return [
            (step, spec)
            for step, op in enumerate(self.flow.steps)
            if step not in read
            for spec in op.signature.outputs[:1]
            if (spec.numel, spec.dtype) in wanted
        ]
