"""Work on tensors that are the same along a dimension, after `expand()`: each copy gives the same result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

from torchgauge.advise.dataflow import RANDOM
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import LEAST_PREDICTED_TIME, rule
from torchgauge.advise.rules.broadcast import CLOSED
from torchgauge.advise.rules.folding import LINEAR_OPS
from torchgauge.facts import FREE, OpRecord, TensorSpec

# How many copies there must be.
_LEAST_TIMES = 4
_POINTWISE, _COPIES = ("elementwise", "activation"), {"aten::clone", "aten::_to_copy"}


class _Repeated(NamedTuple):
    """The elements of a tensor in order: `outer` times `times` equal blocks of `inner` elements."""

    outer: int
    times: int
    inner: int


@rule("expanded-rows", family="order", least_time=LEAST_PREDICTED_TIME)
def expanded_rows(evidence: Evidence) -> Iterator[Advice]:
    """In inference: pointwise ops and linear layers whose input was repeated without a copy, and what follows from
    them, as long as nothing else comes in."""
    if evidence.is_train or not evidence.dataflow.is_known:
        return
    made: dict[int | None, _Repeated] = {}
    for op in evidence.flow.steps:
        found = _result(evidence, op, made)
        if found is not None and op.index not in evidence.dataflow.constants:
            made[op.index] = found
    # A line that also gets tensors which are not repeated, as a layer of a stack does, stays where it is.
    other = {(op.source, op.op) for op in evidence.flow.steps if op.index not in made}
    # What is written to later needs its copies, and so does the rest of the call that made it.
    for op in evidence.flow.steps:
        written = evidence.flow.source(op) if op.op.endswith("_") and op.index not in made and op.producers else None
        for each in [] if written is None or written.index not in made else evidence.flow.steps:
            if written is not None and (each.source, each.module) == (written.source, written.module):
                made.pop(each.index, None)
    groups: dict[tuple[str, int], list[OpRecord]] = {}
    for op in evidence.flow.steps:
        if op.index in made and (op.source, op.op) not in other:
            groups.setdefault((op.module.partition(".")[0], made[op.index].times), []).append(op)
    for (_, times), ops in groups.items():
        work = [op for op in ops if op.op not in _COPIES and op.op != "aten::cat"]
        if not work:
            continue
        share = 1 - 1 / times
        yield Advice(
            rule="expanded-rows",
            where=Where(work[0].module, tuple(op.index for op in ops)),
            evidence={"ops": len(ops), "copies": times},
            recommendation="do this before expand(): each copy gives the same result",
            change=None,
            expected_gain=evidence.share(ops).gain(
                0.7 * share, share, "the ops run on one of the equal copies", fewer_calls=0.0
            ),
            risk="none: the results broadcast in the same way",
            confidence="high",
        )


def _result(evidence: Evidence, op: OpRecord, made: Mapping[int | None, _Repeated]) -> _Repeated | None:
    """How often the result of an op repeats itself, where all that it reads does, apart from parameters and
    numbers."""
    record = evidence.modules.get(op.module)
    signature = op.signature
    is_closed = record is not None and record.type in CLOSED
    if is_closed or op.status == FREE or RANDOM in signature.tags or len(signature.outputs) != 1:
        return None
    result, found, vectors = signature.outputs[0], set[_Repeated](), set[int]()
    is_linear, is_joined = op.op in LINEAR_OPS, op.op == "aten::cat"
    if not is_linear and not is_joined and op.category not in _POINTWISE and op.op not in _COPIES:
        return None
    data = 1 if op.op == "aten::addmm" else 0
    for at, (spec, source) in enumerate(zip(signature.inputs, op.producers, strict=False)):
        is_own = source is None and (op.index, at) not in evidence.dataflow.input_reads
        if is_own and is_linear and at != data:
            continue
        if is_own and not is_linear and spec.numel == (spec.shape or (1,))[-1]:
            vectors.add(spec.numel)  # along the last dimension
            continue
        read = _of_strides(spec) or (made.get(source) if _is_whole(evidence, op, at, made) else None)
        if read is None or not spec.is_floating:
            return None
        found.add(read)
    if not found or len({(each.outer, each.times) for each in found}) > 1:
        return None
    first = next(iter(found))
    if any(first.inner % size for size in vectors):
        return None
    if is_linear:
        width = signature.inputs[1 if op.op == "aten::addmm" else 0].shape[-1]
        return None if first.inner % width else first._replace(inner=first.inner // width * result.shape[-1])
    if is_joined:
        # Along the innermost dimension, which no block may be a part of.
        along = int(signature.attributes.get("dim") or 0) % len(result.shape)
        is_inside = prod(result.shape[:along]) >= first.outer * first.times
        return first._replace(inner=result.numel // (first.outer * first.times)) if is_inside else None
    return first if len(found) == 1 and first.outer * first.times * first.inner == result.numel else None


def _is_whole(evidence: Evidence, op: OpRecord, at: int, made: Mapping[int | None, _Repeated]) -> bool:
    """Whether it reads all elements of a repeated tensor in their order."""
    source, spec = op.producers[at], op.signature.inputs[at]
    return source in made and spec.stride is None and evidence.dataflow.reads_whole(op, at) is not None


def _of_strides(spec: TensorSpec) -> _Repeated | None:
    """Of a tensor that `expand()` has made: its dimensions without a step lie next to each other, and the others are
    in order."""
    if spec.stride is None:
        return None
    still = [at for at, (size, step) in enumerate(zip(spec.shape, spec.stride, strict=True)) if size > 1 and not step]
    if not still or still != list(range(still[0], still[-1] + 1)):
        return None
    outer, times, inner = (
        prod(spec.shape[: still[0]]), prod(spec.shape[at] for at in still), prod(spec.shape[still[-1] + 1 :])
    )  # fmt: skip
    step = 1
    for at in reversed(range(len(spec.shape))):
        if at not in still and spec.shape[at] > 1:
            if spec.stride[at] != step:
                return None
            step *= spec.shape[at]
    return _Repeated(outer, times, inner) if times >= _LEAST_TIMES else None
