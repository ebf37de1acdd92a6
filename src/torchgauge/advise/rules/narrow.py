"""Pointwise layers over many pixels: those that could follow a pooling, and narrow ones that read the same map."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.processor import REFERENCE, pass_seconds
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.folding import LINEAR_OPS, is_pointwise_convolution
from torchgauge.advise.rules.layers import is_resampling
from torchgauge.facts import Cost, OpRecord, TensorSpec

_AVERAGES = {f"aten::{name}" for name in ("avg_pool1d", "avg_pool2d", "avg_pool3d")}
_ADAPTIVE = {f"aten::{name}" for name in ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")}
# A layer that makes a quarter of the channels it reads takes about as long to read them as to multiply them.
_NARROW_RATIO = 4
_LEAST_HEADS = 3
# What is pooled or resampled must get so much smaller.
_LEAST_SMALLER = 2


@rule("pointwise-before-pooling", family="order")
def pointwise_before_pooling(evidence: Evidence) -> Iterator[Advice]:
    """A 1×1 convolution whose result is averaged or made smaller: both are linear, and the order is free."""
    for conv in evidence.flow.of_category("convolution"):
        pool = evidence.flow.only_reader(conv)
        if pool is None or not conv.weights or not is_pointwise_convolution(conv):
            continue
        large, given = conv.signature.outputs[0], pool.signature.attributes
        # Each result must be a weighted mean of pixels. Padding with zeros would count where the bias does.
        averages = pool.op in _AVERAGES and not any(given.get("padding") or ()) and not given.get("divisor_override")
        averages = averages or is_resampling(pool) or pool.op in _ADAPTIVE
        if pool.op == "aten::mean":
            dims, rank = given.get("dim"), len(large.shape)
            averages = isinstance(dims, list | tuple) and bool(dims) and all(int(dim) % rank > 1 for dim in dims)
        if not averages or pool.signature.inputs[0].shape != large.shape:
            continue
        small = pool.signature.outputs[0]
        pixels = small.numel / max(large.numel, 1)
        channels_in, channels_out = conv.signature.inputs[0].shape[1], large.shape[1]
        share, of_conv = evidence.share([conv, pool]), evidence.share([conv]).value
        # The pooling then reads the channels that the convolution reads.
        of_pool = max(share.value - of_conv, 0.0)
        saved = of_conv * (1 - pixels) - of_pool * (channels_in / channels_out - 1)
        if large.numel < _LEAST_SMALLER * small.numel or saved <= 0:
            continue
        part = saved / max(share.value, 1e-12)
        yield Advice(
            rule="pointwise-before-pooling",
            where=Where(conv.module, (conv.index, pool.index)),
            evidence={"pooling": pool.op, "pixels_saved_share": 1 - pixels},
            recommendation=("resize" if is_resampling(pool) else "pool")
            + " before this 1×1 convolution: the result is the same, on fewer pixels",
            change=None,
            expected_gain=share.gain(0.6 * part, part, "the convolution on fewer pixels", fewer_calls=0.0),
            risk="rounding differs in the last digits",
            confidence="high",
        )


@rule("narrow-heads", family="loops")
def narrow_heads(evidence: Evidence) -> Iterator[Advice]:
    """Layers with few outputs that read one tensor: each reads all of it again."""
    groups: dict[object, list[OpRecord]] = {}
    for op in evidence.flow.of_category("convolution", "matmul"):
        place = 1 if op.op == "aten::addmm" else 0
        is_layer = bool(op.weights) and (
            op.op in LINEAR_OPS or (op.category == "convolution" and is_pointwise_convolution(op))
        )
        if not is_layer or evidence.flow.source(op, place + 1) is not None:
            continue
        channels = 1 if op.category == "convolution" else -1
        read, made = op.signature.inputs[place], op.signature.outputs[0]
        whole = evidence.dataflow.reads_whole(op, place)
        if whole is not None and _NARROW_RATIO * made.shape[channels] <= read.shape[channels]:
            groups.setdefault((whole, read, op.op), []).append(op)
    for ops in groups.values():
        own = {op.weights: op for op in ops}
        # `parallel-linears` covers a loop over layers.
        if len(own) < _LEAST_HEADS or len(own) < len(ops) or len({op.source for op in ops}) == 1:
            continue
        channels = 1 if ops[0].category == "convolution" else -1
        read = ops[0].signature.inputs[1 if ops[0].op == "aten::addmm" else 0]
        if 2 * sum(op.signature.outputs[0].shape[channels] for op in ops) > read.shape[channels]:
            continue
        yield Advice(
            rule="narrow-heads",
            where=Where(ops[0].module, tuple(op.index for op in ops)),
            evidence={"layers": [op.module for op in ops], "read_bytes": read.nbytes},
            recommendation="join these layers and split the result: each reads the whole tensor for few outputs",
            change=None,
            expected_gain=_joined(evidence, ops, read),
            risk="checkpoints then have one weight instead of several",
            confidence="high",
        )


def _joined(evidence: Evidence, ops: list[OpRecord], read: TensorSpec) -> Gain:
    """What one layer saves in place of several that read a tensor: their calls, and what reading it takes. On a
    processor both forms are predicted: a product that fills its kernel's blocks takes as long by parts, but reads the
    tensor from memory for each part."""
    share, fewer, how = evidence.share(ops), 1 - 1 / len(ops), "the tensor is read once"
    first, before_s = ops[0].signature, sum(evidence.times.seconds.get(op.index, 0.0) for op in ops)
    channels = 1 if first.category == "convolution" else -1
    width = sum(op.signature.outputs[0].shape[channels] for op in ops)
    *others, weight = first.inputs[:2] if first.category == "convolution" else first.inputs
    weight = with_size(weight, 0 if first.category == "convolution" else -1, width)
    made = with_size(first.outputs[0], channels, width)
    macs, flops = sum(op.cost.macs for op in ops), sum(op.cost.flops for op in ops)
    cost = Cost(macs, flops, read.nbytes + weight.nbytes, made.nbytes)
    joined = replace(ops[0], signature=replace(first, inputs=(*others, weight), outputs=(made,), cost=cost))
    joined_s = None if evidence.is_cuda else evidence.seconds_of(joined)
    if joined_s is None or not before_s:
        return share.gain(0.4 * fewer, fewer, how, fewer_calls=fewer)
    pace = (evidence.peaks.pace if evidence.peaks else None) or REFERENCE
    reading_s = (len(ops) - 1) * pass_seconds(pace, read.nbytes)
    saved = max(0.0, 1 - joined_s / before_s)
    return share.gain(0.7 * saved, min(saved + reading_s / before_s, fewer), how)


def with_size(spec: TensorSpec, dim: int, size: int) -> TensorSpec:
    shape = [*spec.shape]
    shape[dim] = size
    return replace(spec, shape=tuple(shape), stride=None)
