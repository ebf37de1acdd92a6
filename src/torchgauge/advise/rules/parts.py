"""Tensors that are put together part by part, and tables that are copied before a few rows are taken from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from torchgauge.advise.dataflow import SPLITS, VALUE_READS
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import FREE, OpRecord, TensorSpec

# The fewest parts and the most tensors: fewer parts are written out on purpose.
_LEAST_PARTS, _MOST_TENSORS = 8, 4
# Of a tensor that is written part by part, what must have been written so.
_WRITTEN_SHARE = 0.9
_PARTS = "use one reshape, or one index: a loop in Python joins the parts one by one"
_WINDOWS = "use Tensor.unfold: a loop in Python joins these windows one by one"


@rule("joined-parts", family="copies")
def joined_parts(evidence: Evidence) -> Iterator[Advice]:
    """A loop over positions that only puts parts of tensors next to each other: interleaving, a new order. The parts
    are joined by one `cat` of many, or written one by one into a result."""
    views: dict[int | None, list[OpRecord]] = {}
    for op in evidence.forward:
        if op.status == FREE and op.producers:
            views.setdefault(op.producers[0], []).append(op)
    # Lengths that are read from data may be others in the next call.
    readers = {op.module for op in evidence.forward if op.op in VALUE_READS}
    readers |= {read.module for read in evidence.capture.run.host_reads}
    if evidence.capture.run.number_arguments:  # an order, say, in which the parts are joined
        return
    for joined in evidence.flow.named("aten::cat", "aten::stack"):
        if joined.module in readers:
            continue
        bases = [evidence.dataflow.base(joined, at) for at in range(len(joined.signature.inputs))]
        known = Counter(base[0] for base in bases if base is not None)
        is_of_parts = len(bases) >= _LEAST_PARTS and sum(known.values()) == len(bases)
        if not is_of_parts or len(known) > _MOST_TENSORS or min(known.values()) < _LEAST_PARTS // 2:
            continue
        whole = sum({base[0]: base[1].numel for base in bases if base is not None}.values())
        makers = {base for base in known if isinstance(base, int)}
        near = [op for base in makers for op in views.get(base, ()) if op.index < joined.index]
        is_sliding = len(known) == 1 and _are_windows(near[-len(bases) :], joined)
        if whole != joined.signature.outputs[0].numel and not is_sliding:
            continue
        # A join also puts parts in order whose elements lie apart; a reshape leaves them so for the ops behind it.
        if any(spec.stride is not None and spec.stride[-1] != 1 for spec in joined.signature.inputs):
            continue
        # One call splits a tensor into all parts, as into the heads of attention: there is no loop, and a reshape into
        # another order took as long (16 pairs of 0.8 to 17 MB: 0.7 to 5 times, 1.0 in the middle). In the same order it
        # is a view.
        splits = [op for op in near if op.op in SPLITS and len(op.signature.outputs) == len(bases)]
        split_at = {_dim_of(op, op.signature.inputs[0]) for op in splits}
        if split_at - {_dim_of(joined, joined.signature.outputs[0])}:
            continue
        yield _advice(evidence, joined, [*near, joined], len(bases), _WINDOWS if is_sliding else _PARTS)
    for (_, module), writes in _writes(evidence).items():
        parts = [evidence.dataflow.reads_part(op, 1) for op in writes]
        written = sum(op.signature.outputs[0].numel for op in writes)
        target = evidence.dataflow.base(writes[0], 0)
        is_whole = target is not None and written >= _WRITTEN_SHARE * target[1].numel
        is_whole = is_whole and module not in readers
        if len(writes) >= _LEAST_PARTS and None not in parts and len(set(parts)) <= _MOST_TENSORS and is_whole:
            yield _advice(evidence, writes[0], writes, len(writes), _PARTS, module)


def _dim_of(op: OpRecord, spec: TensorSpec) -> int:
    return int(op.signature.attributes.get("dim") or 0) % max(len(spec.shape), 1)


def _are_windows(views: Sequence[OpRecord], joined: OpRecord) -> bool:
    """Whether these are the parts that are joined, slices of one length along one dimension at a regular step."""
    given = [op.signature.attributes for op in views if op.op == "aten::slice" and op.source == joined.source]
    spans = [(int(each["start"] or 0), int(each["end"])) for each in given if isinstance(each.get("end"), int)]
    if len(spans) != len(joined.signature.inputs) or len({each.get("dim") for each in given}) != 1:
        return False
    steps = {after[0] - before[0] for before, after in pairwise(spans)}
    return len(steps) == 1 and min(steps) > 0 and len({end - start for start, end in spans}) == 1


def _writes(evidence: Evidence) -> dict[tuple[str | None, str], list[OpRecord]]:
    """Copies into a part of a tensor, by the line that makes them."""
    groups: dict[tuple[str | None, str], list[OpRecord]] = {}
    for op in evidence.flow.named("aten::copy_"):
        if op.source is not None and len(op.producers) == 2 and op.producers[0] is not None:
            groups.setdefault((op.source, op.module), []).append(op)
    return groups


def _advice(
    evidence: Evidence, at: OpRecord, ops: list[OpRecord], parts: int, words: str, module: str | None = None
) -> Advice:
    fewer = 1 - 2 / parts
    return Advice(
        rule="joined-parts",
        where=Where(at.module if module is None else module, (at.index,)),
        evidence={"parts": parts},
        recommendation=words,
        change=None,
        expected_gain=evidence.share(ops).gain(0.5 * fewer, fewer, f"one copy in place of {parts} parts"),
        risk="none",
        confidence="high",
    )
