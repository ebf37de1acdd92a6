"""Sums of weighted differences that are written out element by element."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord, TensorSpec

_DIFFERENCES = {f"aten::{name}" for name in ("sub", "sub_", "rsub", "add", "add_")}
# So many times an operand must be repeated: by fewer, a pass over it is as long as one over the difference.
_LEAST_TIMES = 4


@rule("weighted-differences", family="fusion")
def weighted_differences(evidence: Evidence) -> Iterator[Advice]:
    """`((x - centre) * weight).sum(axis)`, where centre and weight are broadcast: the residuals of a codebook. The sum
    of the products with x is a matrix product, that with the centre needs the sum of the weights alone."""
    for scaled in evidence.flow.named("aten::mul", "aten::mul_"):
        total = evidence.flow.only_reader(scaled)
        if total is None or total.op != "aten::sum" or len(scaled.producers) != 2:
            continue
        at = next((at for at in (0, 1) if _is_difference(evidence, scaled, at)), None)
        made, dims = scaled.signature.outputs[0], total.signature.attributes.get("dim")
        if at is None or not isinstance(dims, list | tuple) or total.signature.inputs[0].shape != made.shape:
            continue
        weight, rank = scaled.signature.inputs[1 - at], len(made.shape)
        summed = [int(dim) % rank for dim in dims]
        is_repeated = made.numel >= _LEAST_TIMES * weight.distinct_numel
        if not summed or not is_repeated or not all(_has_whole(weight, made, dim) for dim in summed):
            continue
        difference = evidence.flow.source(scaled, at)
        ops = [op for op in (difference, scaled, total) if op is not None]
        yield Advice(
            rule="weighted-differences",
            where=Where(scaled.module, tuple(op.index for op in ops)),
            evidence={"shape": list(made.shape), "written_bytes": 2 * made.nbytes},
            recommendation="use matmul(weight, x) - weight.sum() * centre: this writes out all differences",
            change=None,
            expected_gain=evidence.share(ops).gain(0.5, 0.95, "the passes over the differences and products"),
            risk="rounding differs: digits are lost where the differences are much smaller than the tensors",
            confidence="high",
        )


def _is_difference(evidence: Evidence, scaled: OpRecord, at: int) -> bool:
    """Whether a factor is a difference or sum that this product alone reads, as large as the product, of which a term
    is broadcast."""
    source, made = evidence.flow.source(scaled, at), scaled.signature.outputs[0]
    if source is None or source.op not in _DIFFERENCES or not evidence.flow.is_kept_for(source, scaled):
        return False
    terms = source.signature.inputs
    is_whole = source.signature.outputs[0].shape == made.shape == scaled.signature.inputs[at].shape
    smallest = min((spec.distinct_numel for spec in terms), default=made.numel)
    return len(terms) == 2 and is_whole and 1 < smallest <= made.numel / _LEAST_TIMES


def _has_whole(spec: TensorSpec, made: TensorSpec, dim: int) -> bool:
    """Whether a factor has this dimension of the product, and is not repeated along it."""
    from_last = len(made.shape) - dim
    if len(spec.shape) < from_last or spec.shape[-from_last] != made.shape[dim] or made.shape[dim] == 1:
        return False
    return spec.stride is None or bool(spec.stride[-from_last])
