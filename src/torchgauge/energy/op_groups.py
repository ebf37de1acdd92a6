"""Op calls that are alike: the same op on tensors of the same shapes and types takes the same energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchgauge.facts import FREE, OpRecord, Signature
from torchgauge.measure.op_times import OpTime

Spec = tuple[tuple[int, ...], str]
# Op, overload, distinct inputs, first output: the same from a static op and from a real call.
Key = tuple[str, str, tuple[Spec, ...], Spec | None]


@dataclass(frozen=True, slots=True)
class Kind:
    """`seconds` is the time of all its calls in one run."""

    key: Key
    indices: tuple[int, ...]
    seconds: float

    @property
    def seconds_each(self) -> float:
        return self.seconds / len(self.indices)


def key_of(signature: Signature) -> Key:
    specs = [(spec.shape, spec.dtype) for spec in signature.inputs]
    first = next(((spec.shape, spec.dtype) for spec in signature.outputs), None)
    return signature.op, signature.overload, tuple(specs), first


def op_groups_of(ops: Sequence[OpRecord], times: Mapping[int, OpTime]) -> list[Kind]:
    """Of the ops that were timed and do something; the one that takes longest first."""
    groups: dict[Key, list[int]] = {}
    for op in ops:
        if op.index in times and op.status != FREE:
            groups.setdefault(key_of(op.signature), []).append(op.index)
    kinds = [Kind(key, tuple(found), sum(times[index].time_s for index in found)) for key, found in groups.items()]
    return sorted(kinds, key=lambda kind: -kind.seconds)


def heavy_op_groups(kinds: Sequence[Kind], *, share: float, most: int) -> list[Kind]:
    """As many as make up `share` of the time, but at most so many."""
    total, chosen, covered = sum(kind.seconds for kind in kinds), [], 0.0
    for kind in kinds[:most]:
        if covered >= share * total or not kind.seconds:
            break
        chosen.append(kind)
        covered += kind.seconds
    return chosen
