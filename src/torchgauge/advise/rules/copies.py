"""Copies that nothing needs."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.records import OpRecord

_CLONE = "aten::clone"
_LEAST_SHARE = 0.005
# They read any stride as fast as the copy would.
_ANY_STRIDE = {"elementwise", "activation", "reduction"}


@rule("needless-copy", family="copies")
def needless_copy(evidence: Evidence) -> Iterator[Advice]:
    for op in evidence.flow.steps:
        why = _why_needless(evidence, op) if op.op == _CLONE else None
        if why is None or evidence.share([op]).value < _LEAST_SHARE:
            continue
        reason, recommendation, confidence = why
        yield Advice(
            rule="needless-copy",
            where=Where(op.module, (op.index,)),
            evidence={"copied_bytes": op.signature.outputs[0].nbytes, "bytes_moved": moved(op), "why": reason},
            recommendation=recommendation,
            code=None,
            expected_gain=evidence.share([op]).gain(0.5, 1.0, "the copy's pass over memory goes away"),
            risk="code outside the forward pass that writes into the copy would then write into the original",
            confidence=confidence,
        )


def _why_needless(evidence: Evidence, op: OpRecord) -> tuple[str, str, str] | None:
    read, written = op.signature.inputs[0], op.signature.outputs[0]
    if _is_written_to(evidence, op) or op.weights:
        return None
    source = evidence.flow.sources(op)[0]
    if source is not None and evidence.by_index[source].op == _CLONE and evidence.flow.users(op):
        return "it copies a copy", "copy once: turn the dimensions first, then make the tensor contiguous", "high"
    if read == written and evidence.flow.users(op):
        return (
            "its input is contiguous and nothing writes to it",
            "leave out the clone(): nothing writes to it",
            "medium",
        )
    reader = _reader(evidence, op)
    if read.stride is not None and reader is not None:
        words = "leave out contiguous(): the op that reads it takes any stride"
        return f"{reader.op} reads it, which takes any stride", words, "medium"
    return None


def _is_written_to(evidence: Evidence, op: OpRecord) -> bool:
    """An in-place op behind it wants a copy of its own; so does one that writes to the original meanwhile."""
    source = evidence.flow.sources(op)[0]
    behind = [*evidence.flow.users(op), *(evidence.flow.users(evidence.by_index[source]) if source is not None else ())]
    return any(evidence.by_index[index].op.endswith("_") for index in behind)


def _reader(evidence: Evidence, op: OpRecord) -> OpRecord | None:
    """The only op that reads the copy, if it does so as it is: a view in between may need it contiguous."""
    users = evidence.flow.users(op)
    following = evidence.by_index.get(op.index + 1)
    if len(users) != 1 or following is None or following.index != users[0]:
        return None
    return following if following.category in _ANY_STRIDE else None
