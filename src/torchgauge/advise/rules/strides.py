"""Ops that read memory out of order: they copy it first, or read single elements instead of whole vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.layout import CHANNELS_LAST
from torchgauge.facts import OpRecord, TensorSpec

# Their kernels make the input contiguous first, in a copy that no op of the model shows. Measured on a CPU, one thread:
# layer norm and softmax of a turned tensor 5 times as long, a sum of two orders 10 times, every second element 2 times.
_COPYING = {"aten::native_layer_norm", "aten::_softmax", "aten::_log_softmax", "aten::_fused_rms_norm"}
_POINTWISE = ("elementwise", "activation")
_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Access:
    """An input that is read out of order; `wasted` of the op's traffic would not be there in order."""

    op: OpRecord
    spec: TensorSpec
    words: str
    wasted: float


@rule("strided-access", family="layout")
def strided_access(evidence: Evidence) -> Iterator[Advice]:
    kinds: dict[str, list[Access]] = {}
    for access in _accesses(evidence):
        kinds.setdefault(access.words, []).append(access)
    for group in kinds.values():
        yield from (_advice(evidence, access) for access in group)


def _accesses(evidence: Evidence) -> Iterator[Access]:
    # Equal calls share their signature, and all depends on that.
    known: dict[int, Access | None] = {}
    for op in (*evidence.flow.named(*_COPYING), *evidence.flow.of_category(*_POINTWISE)):
        shared = id(op.signature)
        if shared not in known:
            known[shared] = _access(op)
        if (access := known[shared]) is not None:
            yield replace(access, op=op)


def _advice(evidence: Evidence, access: Access) -> Advice:
    return Advice(
        rule="strided-access",
        where=Where(access.op.module, (access.op.index,)),
        evidence={
            "op": access.op.op,
            "shape": list(access.spec.shape),
            "stride": list(access.spec.stride or ()),
            "bytes_moved": moved(access.op),
        },
        recommendation=access.words,
        change=_change(evidence, access),
        expected_gain=_gain(evidence, access),
        risk="the copy may only move elsewhere: the producer should write contiguous output",
        confidence="medium",
    )


def _access(op: OpRecord) -> Access | None:
    if op.op in _COPYING:
        return _copied(op)
    is_turned = any(spec.stride is not None for spec in op.signature.inputs)
    return _skipping(op) or _mixed(op) if is_turned else None


def _copied(op: OpRecord) -> Access | None:
    read = op.signature.inputs[0]
    if read.stride is None or read.distinct_numel < read.numel:
        return None
    words = "give it a contiguous tensor: the kernel copies non-contiguous input at every call"
    return Access(op, read, words, 2 * read.nbytes / (moved(op) + 2 * read.nbytes))


def _skipping(op: OpRecord) -> Access | None:
    """Every element fetched brings its neighbours along, at most a cache line's."""
    widest = max(_large(op), key=step, default=None)
    if widest is None or step(widest) == 1:
        return None
    words = "take halves or chunks instead of every n-th element: memory is read in lines, most of each for nothing"
    return Access(op, widest, words, _fetched(op, widest, step(widest)))


def _mixed(op: OpRecord) -> Access | None:
    """Where the innermost dimensions of two operands differ, one is read in its own, the other element by element."""
    large = _large(op)
    turned = next((spec for spec in large if spec.stride is not None), None)
    if len({innermost(spec) for spec in large}) < 2 or turned is None:
        return None
    words = "call .contiguous() after the transpose: mixing strides makes this op slow"
    return Access(op, turned, words, _fetched(op, turned, _LINE_BYTES))


def _large(op: OpRecord) -> list[TensorSpec]:
    """The inputs that are not broadcast."""
    elements = op.signature.outputs[0].numel
    return [spec for spec in op.signature.inputs if spec.distinct_numel == elements > 1]


def _fetched(op: OpRecord, spec: TensorSpec, apart: int) -> float:
    """The share of the traffic that is fetched for nothing where elements lie so far apart."""
    extra = spec.nbytes * (min(apart, max(_LINE_BYTES // spec.itemsize, 1)) - 1)
    return extra / (moved(op) + extra)


def innermost(spec: TensorSpec) -> int | None:
    """The dimension along which neighbours in memory lie; those of one element have none."""
    wide = [dim for dim, size in enumerate(spec.shape) if size > 1]
    strides = spec.stride
    if strides is None:
        return wide[-1] if wide else None
    return min(wide, key=lambda dim: strides[dim], default=None)


def step(spec: TensorSpec) -> int:
    """Elements from one to the next in memory where they lie closest; 1 where nothing is skipped."""
    if spec.stride is None:
        return 1
    steps = [abs(step) for size, step in zip(spec.shape, spec.stride, strict=True) if size > 1 and step]
    return min(steps, default=1)


def _gain(evidence: Evidence, access: Access) -> Gain:
    """Caches and prefetching hide most of it: of the traffic wasted, a tenth to a half was measured as time."""
    wasted = access.wasted
    how = "the traffic that reading out of order adds"
    return evidence.share([access.op]).gain(0.1 * wasted, 0.5 * wasted, how, fewer_calls=0.0)


def _change(evidence: Evidence, access: Access) -> Patch | None:
    """Images turned into rows, or back, are in order where convolutions work in channels_last."""
    has_images = any(op.category == "convolution" for op in evidence.flow.sources(access.op)) or _follows_image(
        evidence, access.op
    )
    is_turned = len(access.spec.shape) == 4 and step(access.spec) == 1
    if not has_images or not is_turned:
        return None
    return Patch(CHANNELS_LAST)


def _follows_image(evidence: Evidence, op: OpRecord) -> bool:
    """Two steps back: a convolution, and an activation or a norm behind it."""
    near = [source for first in evidence.flow.sources(op) for source in evidence.flow.sources(first)]
    return any(source.category == "convolution" for source in near)
