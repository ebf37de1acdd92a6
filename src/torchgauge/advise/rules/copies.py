"""Copies that nothing needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchgauge.advise.code import SourceEdit
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.flow import Flow
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.attention import written_attentions
from torchgauge.advise.rules.layers import cancelling_copies, is_resampling
from torchgauge.advise.rules.layout import innermost
from torchgauge.facts import FREE, OpRecord, TensorSpec

_CLONE = "aten::clone"
_COPYING = ("clone", "contiguous")
# They copy where strides allow no view.
_RESHAPING = ("reshape", "reshape_as", "flatten", "ravel")
# They read any stride as fast as the copy would.
_ANY_STRIDE = {"elementwise", "activation", "reduction"}
_POINTWISE, _MOST_POINTWISE = ("elementwise", "activation"), 6
_VIEWS = {"aten::view", "aten::_unsafe_view", "aten::reshape"}
# They take a matrix as it is or transposed.
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}


@rule("needless-copy", family="copies")
def needless_copy(evidence: Evidence) -> Iterator[Advice]:
    # `cancelling-permutes` and `attention-by-hand` cover these.
    cancelled = {op.index for there, _, back in cancelling_copies(evidence) for op in (there, back)}
    cancelled |= {op.index for _, _, copies in written_attentions(evidence) for op in copies}
    needless = {op.index: _why_needless(evidence, op) for op in evidence.flow.named(_CLONE)}
    by_call: dict[tuple[str | None, str], list[int]] = {}
    for op in filter(_is_in_order, evidence.flow.named(_CLONE)):
        by_call.setdefault((op.source, op.module), []).append(op.index)
    for op in evidence.flow.named(_CLONE):
        # A line in a loop must need none of its copies: the last one of snapshots alone is not written to any more.
        rounds = by_call[op.source, op.module] if op.source is not None and _is_in_order(op) else ()
        why = needless[op.index] if all(needless[index] for index in rounds) else None
        # The caller may write to an input of which the model keeps a copy.
        is_kept = op.index in evidence.capture.run.kept_ops and evidence.flow.source(op) is None
        if why is None or op.index in cancelled or is_kept:
            continue
        reason, recommendation, confidence, copies = why
        names = _COPYING if len(copies) == 1 else (*_COPYING, *_RESHAPING)
        if not all(_is_in_code(evidence, copy, names) for copy in copies):
            continue
        yield Advice(
            rule="needless-copy",
            where=Where(op.module, (op.index,)),
            evidence={"copied_bytes": op.signature.outputs[0].nbytes, "bytes_moved": moved(op), "why": reason},
            recommendation=recommendation,
            change=_without_copy(evidence, op),
            expected_gain=evidence.share([op]).gain(
                *_saved(evidence.flow, op), "the copy's pass over memory goes away"
            ),
            risk="code that later writes into the copy would then write into the original",
            confidence=confidence,
        )

    yield from _same_size(evidence)


def _same_size(evidence: Evidence) -> Iterator[Advice]:
    """Tensors that are resized to the size that they have, each element to itself."""
    for op in filter(is_resampling, evidence.flow.of_category("resize")):
        given, source = op.signature.attributes, evidence.flow.source(op)
        scales = [value for name, value in given.items() if name.startswith("scale") and value is not None]
        read, written = op.signature.inputs[0], op.signature.outputs[0]
        if read.shape != written.shape or any(scale != 1 for scale in scales):
            continue
        # An op in place would then write to what others read.
        behind = [*evidence.flow.users(op), *(() if source is None else evidence.flow.users(source))]
        if source is None or evidence.flow.is_result(op) or any(user.op.endswith("_") for user in behind):
            continue
        yield Advice(
            rule="needless-copy",
            where=Where(op.module, (op.index,)),
            evidence={"copied_bytes": op.signature.outputs[0].nbytes, "bytes_moved": moved(op)},
            recommendation="resize only where the sizes differ: here each element becomes itself",
            change=None,
            # What reads a tensor out of order takes longer for it.
            expected_gain=evidence.share([op]).gain(
                0.9 if read.stride == written.stride else 0.5, 1.0, "a resize that changes nothing goes away"
            ),
            risk="code that later writes into the result would then write into the original",
            confidence="high",
        )


def _is_in_order(op: OpRecord) -> bool:
    """Whether a copy is of a tensor in the same order, which only clone() makes."""
    return op.signature.inputs[0] == op.signature.outputs[0]


def _is_in_code(evidence: Evidence, op: OpRecord, names: Sequence[str]) -> bool:
    """Whether the line of a copy has a call that copies, by these names: products and layers also copy inside, which
    no edit of their line prevents."""
    place = evidence.any_code_at(op)
    if place is None:
        return _is_in_order(op)
    source, line = place
    calls = source.calls(line, *names)
    made = evidence.flow.source(op)
    # The product of a layer on the same line is inside the layer's module.
    if made is not None and made.op in _PRODUCTS and (made.source, made.module) == (op.source, op.module):
        # A call inside the product copies its operand, not its result.
        calls = [call for call in calls if not any(map(source.product, source.around(call)))]
    return bool(calls)


def _without_copy(evidence: Evidence, op: OpRecord) -> SourceEdit | None:
    """Of a copy of a copy the first goes, unless a view between the two needs it."""
    source = evidence.flow.source(op)
    if source is None or source.op != _CLONE or op.signature.inputs[0] == op.signature.outputs[0]:
        return evidence.without_calls([op], _COPYING)
    first, second = evidence.code_at(source), evidence.code_at(op)
    if first is None or second is None or first[1] != second[1] or first[0].calls(first[1], "view"):
        return None
    return evidence.without_calls([source], _COPYING)


def _why_needless(evidence: Evidence, op: OpRecord) -> tuple[str, str, str, tuple[OpRecord, ...]] | None:
    """The reason, what to do, how sure that is, and the copies that it is done to."""
    read, written, flow = op.signature.inputs[0], op.signature.outputs[0], evidence.flow
    source = flow.source(op)
    # The caller may write to a result. An op in place needs the copy, also one that writes to the original later.
    behind = [*flow.users(op), *(_others_of_origin(evidence, op) if source is None else flow.users(source))]
    is_written_to = any(user.op.endswith("_") for user in behind)
    if op.weights or flow.is_result(op) or not flow.users(op) or is_written_to:
        return None
    if read == written:
        words = "leave out the clone(): nothing writes to it"
        return "its input is contiguous and nothing writes to it", words, "medium", (op,)
    # Where the first copy is needless itself, it goes, and the second copies no copy.
    if (
        source is not None
        and source.op == _CLONE
        and flow.is_kept_for(source, op)
        and not _why_needless(evidence, source)
    ):
        is_turned = read.distinct_numel == source.signature.outputs[0].numel
        if is_turned:
            words = "remove the second copy: permute first, then call .contiguous() once"
            return "it copies a copy", words, "high", (source, op)
        return "it copies a copy", "leave out the first copy: only a copy reads it", "high", (source,)
    reader = flow.only_reader(op)
    if (
        read.stride is not None
        and reader is not None
        and _reads_as_it_is(reader, op)
        and not _is_viewed(evidence, reader)
    ):
        words = "leave out contiguous(): the op that reads it takes any stride"
        return f"{reader.op} reads it, which takes any stride", words, "medium", (op,)
    return None


def _others_of_origin(evidence: Evidence, op: OpRecord) -> list[OpRecord]:
    """The ops that read the same input of the model as a copy; of a tensor that no op made, those of all such."""
    reads = evidence.dataflow.input_reads
    number = reads.get((op.index, 0))
    return [
        each
        for each in evidence.flow.steps
        for at, source in enumerate(each.producers)
        if source is None and reads.get((each.index, at)) == number
    ]


def _is_viewed(evidence: Evidence, reader: OpRecord) -> bool:
    """Whether a view in another shape is taken of what pointwise ops make of a tensor: in the order that it has without
    the copy, there is no such view, or it copies."""
    made = {reader.index} if reader.category in _POINTWISE else set[int]()
    for op in evidence.forward if made else ():
        if op.index <= reader.index or made.isdisjoint(op.producers):
            continue
        if op.op in _VIEWS:
            return True
        if op.category in _POINTWISE and op.status != FREE:
            made.add(op.index)
    return False


def _reads_as_it_is(reader: OpRecord, op: OpRecord) -> bool:
    """Not through a view, which may need it contiguous, nor next to an operand in another order: `strided-access`."""
    place, turned = reader.producers.index(op.index), op.signature.inputs[0]
    read, made = reader.signature.inputs[place], reader.signature.outputs[0]
    others = [spec for at, spec in enumerate(reader.signature.inputs) if at != place and spec.numel == made.numel > 1]
    is_in_order = all(innermost(spec) == innermost(turned) for spec in others)
    is_able = (reader.category in _ANY_STRIDE and is_in_order) or (reader.op in _PRODUCTS and _is_transposed(turned))
    return is_able and read == op.signature.outputs[0]


def _saved(flow: Flow, op: OpRecord) -> tuple[float, float]:
    """The part of a copy that is saved (low, high): what reads a tensor out of order instead takes longer for it. A
    pointwise op makes a result in the order of its operand, which the ops behind it have to read: they gain it all in
    one model and nothing in another."""
    reader = flow.only_reader(op)
    if op.signature.inputs[0].stride is None or reader is None:
        return 0.9, 1.0
    return (0.5, 1.0) if _ends_soon(flow, reader) else (0.15, 0.8)


def _ends_soon(flow: Flow, reader: OpRecord) -> bool:
    """Whether the order ends with what reads the tensor, or with pointwise ops without other operands behind it."""
    for _ in range(_MOST_POINTWISE):
        if reader.category not in _POINTWISE or flow.is_result(reader):
            return True
        if any(user.category not in _ANY_STRIDE for user in flow.users(reader)):
            return False
        following = flow.only_reader(reader)
        if (
            following is None
            or sum(spec.numel == reader.signature.outputs[0].numel for spec in following.signature.inputs) > 1
        ):
            return False
        reader = following
    return False


def _is_transposed(spec: TensorSpec) -> bool:
    """Matrices whose columns lie one behind the other."""
    if spec.stride is None or len(spec.shape) < 2:
        return False
    *_, rows, columns = spec.shape
    *_, row_step, column_step = spec.stride
    return row_step == 1 and column_step >= rows and columns > 1
