"""Distances of all pairs of rows by their differences, which are written to memory one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.processor import is_over_last
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import LEAST_PREDICTED_TIME, rule
from torchgauge.facts import Cost, OpRecord, TensorSpec

# Of the predicted time that is left, what a run takes (20 shapes of one EPYC).
_LEFT = (0.25, 2.6)
# Sums of absolute values have no matrix product: nanoseconds for each pair and feature (0.15 to 0.37), and how many
# features there may be.
_NS_PER_PAIR, _NS_PER_FEATURE, _MOST_FEATURES = 1.5, 0.2, 64
# How often each row must be read: below, the differences are hardly larger than what they are made of.
_LEAST_PAIRS = 4


@rule("pairwise-differences", family="fusion", least_time=LEAST_PREDICTED_TIME)
def pairwise_differences(evidence: Evidence) -> Iterator[Advice]:
    """`((a[:, None] - b[None]) ** 2).sum(-1)`, in inference: a tensor of all pairs times the features."""
    for op in () if evidence.is_train else evidence.flow.named("aten::sub"):
        powers = _powers(evidence, op)
        if not _is_of_pairs(op) or powers is None:
            continue
        ops, norm = powers
        if norm == 1 and op.signature.outputs[0].shape[-1] > _MOST_FEATURES:
            continue
        root = evidence.flow.only_reader(ops[-1])
        is_distance = norm != 2 or ops[-1].op == "aten::linalg_vector_norm"
        if not is_distance and root is not None and root.op.rstrip("_") == "aten::sqrt":
            ops, is_distance = [*ops, root], True
        before_s = sum(evidence.times.seconds.get(each.index, 0.0) for each in ops)
        pairs, features = ops[-1].signature.outputs[0].numel, op.signature.outputs[0].shape[-1]
        after_s = evidence.seconds_of(_distances(op, norm))
        if norm == 1 and not evidence.is_cuda:
            after_s = pairs * (_NS_PER_PAIR + _NS_PER_FEATURE * features) * 1e-9
        if after_s is None:  # as its bytes are
            itemsize = op.signature.outputs[0].itemsize
            read = sum(spec.distinct_numel for spec in op.signature.inputs)
            after_s = before_s * min(1.0, (read + 3 * pairs) * itemsize / max(sum(map(moved, ops)), 1))
        left = min(after_s / before_s, 1.0) if before_s else 1.0
        call = "torch.cdist(a, b)" if norm == 2 else "torch.cdist(a, b, p=1)"
        yield Advice(
            rule="pairwise-differences",
            where=Where(op.module, tuple(each.index for each in ops)),
            evidence={"shape": list(op.signature.outputs[0].shape), "bytes": op.signature.outputs[0].nbytes},
            recommendation=f"use {call}{'' if is_distance else '.square()'}: all differences are written to memory",
            change=None,
            expected_gain=evidence.share(ops).gain(
                max(0.0, 1 - _LEFT[1] * left), 1 - _LEFT[0] * left, "the differences are not written to memory"
            ),
            risk="small distances lose digits, unless compute_mode forbids the product"
            if norm == 2
            else "rounding differs",
            confidence="high",
        )


def _is_of_pairs(op: OpRecord) -> bool:
    """Whether rows are subtracted from others along two different dimensions, which are repeated without a copy."""
    made = op.signature.outputs[0]
    if len(op.signature.inputs) != 2 or len(made.shape) < 3 or made.dtype not in ("float32", "float64"):
        return False
    if op.signature.attributes.get("alpha") not in (None, 1):
        return False
    repeated = [
        {at for at in range(-len(made.shape), 0) if made.shape[at] > 1 and _is_repeated(spec, at)}
        for spec in op.signature.inputs
    ]
    # As in (…, 1, m, features) and (…, n, 1, features): a dimension beside these two would be one of pairs as well.
    are_pairs = sorted(repeated, key=min) == [{-3}, {-2}] if all(repeated) else False
    is_large = all(made.numel >= _LEAST_PAIRS * spec.distinct_numel for spec in op.signature.inputs)
    return are_pairs and made.shape[-1] > 1 and is_large


def _is_repeated(spec: TensorSpec, at: int) -> bool:
    return -at > len(spec.shape) or spec.shape[at] == 1 or (spec.stride is not None and spec.stride[at] == 0)


def _powers(evidence: Evidence, op: OpRecord) -> tuple[list[OpRecord], int] | None:
    """The difference with what makes a sum of its squares or absolute values, and nothing else; and which of both."""
    power = evidence.flow.only_reader(op)
    if power is None:
        return None
    name = power.op.removesuffix("_")
    if name == "aten::linalg_vector_norm":
        order = power.signature.attributes.get("ord", 2)
        return ([op, power], int(order)) if order in (1, 2) and _is_over_features(power) else None
    is_square = name == "aten::pow" and power.signature.attributes.get("exponent") == 2
    is_square = is_square or (name == "aten::mul" and power.producers == (op.index, op.index))
    if not is_square and name != "aten::abs":
        return None
    total = evidence.flow.only_reader(power)
    if total is None or total.op != "aten::sum" or not _is_over_features(total):
        return None
    return [op, power, total], 2 if is_square else 1


def _is_over_features(op: OpRecord) -> bool:
    read, result = op.signature.inputs[0], op.signature.outputs[0]
    if result.shape != read.shape[:-1] or result.dtype != read.dtype:
        return False
    dim, rank = op.signature.attributes.get("dim"), len(read.shape)
    dims = dim if isinstance(dim, list | tuple) else [dim]
    return is_over_last(op) and [at % rank for at in dims if isinstance(at, int)] == [rank - 1]


def _distances(op: OpRecord, norm: int) -> OpRecord:
    """The op of torch that takes the place of the difference and all behind it."""
    made, (one, other) = op.signature.outputs[0], op.signature.inputs
    result = replace(made, shape=made.shape[:-1], stride=None)
    terms = result.numel * made.shape[-1]
    cost = Cost(terms, 3 * terms, one.distinct_numel * 4 + other.distinct_numel * 4, result.nbytes)
    name = "aten::_euclidean_dist" if norm == 2 else "aten::_cdist_forward"
    signature = replace(op.signature, op=name, outputs=(result,), category="elementwise", attributes={}, cost=cost)
    return replace(op, signature=signature)
