"""What the model was given, and which ops read it: their producers name the inputs while the model runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from torchgauge.capture.fake_run import FakeRun
from torchgauge.capture.names import named_inputs
from torchgauge.capture.real import RealRun
from torchgauge.capture.recorder import describe_value
from torchgauge.facts import InputRecord, OpRecord


@dataclass(frozen=True, slots=True)
class Given:
    """The inputs as they were before the run; `origins` are what the producers of an op call them, -1 for the first,
    and may be equal where one tensor was given twice."""

    records: tuple[InputRecord, ...]
    origins: tuple[int, ...]

    def resolve_readers(self, ops: Sequence[OpRecord]) -> tuple[tuple[InputRecord, ...], tuple[OpRecord, ...]]:
        """The inputs with their readers, and the ops with no other producers than ops."""
        readers: dict[int, list[tuple[int, int]]] = {origin: [] for origin in self.origins}
        parted = tuple([op if readers.keys().isdisjoint(op.producers) else _parted(op, readers) for op in ops])
        pairs = zip(self.records, self.origins, strict=True)
        return tuple(replace(record, readers=tuple(readers[origin])) for record, origin in pairs), parted


def mark_inputs(
    run: FakeRun | RealRun, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], inferred: str | None
) -> Given:
    """Of the arguments that the run has admitted."""
    named = list(named_inputs(model, args, kwargs))
    records = tuple(InputRecord(name, describe_value(tensor), inferred) for name, tensor in named)
    return Given(records, tuple(run.mark(tensor, -1 - place) for place, (_, tensor) in enumerate(named)))


def written_by_ops(writers: Iterable[int | None]) -> tuple[int, ...]:
    """Each op once, in order; without the marks of inputs."""
    return tuple(sorted({writer for writer in writers if writer is not None and writer >= 0}))


def _parted(op: OpRecord, readers: dict[int, list[tuple[int, int]]]) -> OpRecord:
    for place, producer in enumerate(op.producers):
        if producer in readers:
            readers[producer].append((op.index, place))
    return replace(op, producers=tuple(None if producer in readers else producer for producer in op.producers))
