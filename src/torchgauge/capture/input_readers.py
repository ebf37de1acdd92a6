"""What the model was given, by the names that its forward declares, and which ops read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import nn

from torchgauge.capture.fake_run import FakeRun
from torchgauge.capture.real import RealRun
from torchgauge.capture.recorder import describe_value
from torchgauge.capture.twin import is_plain
from torchgauge.facts import InputRecord, OpRecord
from torchgauge.source.signature import forward_signature


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


def named_inputs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor given; those in containers are named `images[0]`, `batch.mask`."""
    names = [parameter.name for parameter in forward_signature(model).positional]
    named = {names[i] if i < len(names) else f"input{i}": value for i, value in enumerate(args)} | kwargs
    for argument, value in named.items():
        yield from _named_tensors(argument, value)


def _named_tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named_tensors(f"{name}.{key}", item)
    elif isinstance(value, list | tuple | set):
        for place, item in enumerate(value):
            yield from _named_tensors(f"{name}[{place}]", item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _named_tensors(f"{name}.{field.name}", getattr(value, field.name, None))
    elif is_plain(type(value)):  # a cache of keys and values
        for attribute, item in getattr(value, "__dict__", {}).items():
            yield from _named_tensors(f"{name}.{attribute}", item)
