"""Convolutions whose layout is not the one their kernels work in."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord

# cuDNN names the kernels that turn the layout around.
_CONVERSIONS = ("nchwtonhwc", "nhwctonchw")
_LEAST_MACS = 0.5


CHANNELS_LAST = """\
model = model.to(memory_format=torch.channels_last)
inputs = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs]
"""


@rule("channels-last", family="layout")
def channels_last(evidence: Evidence) -> Iterator[Advice]:
    if not evidence.is_cuda or not evidence.totals.macs:
        return
    planar = [op for op in evidence.forward if _is_planar(op)]
    if sum(op.cost.macs for op in planar) < _LEAST_MACS * sum(op.cost.macs for op in evidence.forward):
        return
    converted = [op for op in planar if _converts(evidence, op)]
    if evidence.op_times and not converted:
        return
    yield Advice(
        rule="channels-last",
        where=Where("", tuple(op.index for op in planar)),
        evidence={"convolutions": len(planar), "converted": len(converted) if evidence.op_times else None},
        recommendation="keep images in channels_last: half-precision kernels use it and convert other layouts",
        change=Patch(CHANNELS_LAST),
        expected_gain=_spared(evidence, planar),
        risk="ops without a channels_last kernel convert it back; check the output strides",
        confidence="high" if converted else "medium",
    )


def _is_planar(op: OpRecord) -> bool:
    """A half-precision convolution over contiguous images."""
    if op.category != "convolution" or op.signature.dtype not in ("float16", "bfloat16"):
        return False
    images = op.signature.inputs[0]
    return len(images.shape) == 4 and images.stride is None and images.shape[1] > 1 and images.shape[2] > 1


def _converts(evidence: Evidence, op: OpRecord) -> bool:
    row = evidence.capture.measured.ops.get(op.index, {}) if evidence.capture.measured else {}
    return any(word in str(row.get("kernels") or "").lower() for word in _CONVERSIONS)


def _spared(evidence: Evidence, planar: list[OpRecord]) -> Gain:
    turned = sum(2 * (op.signature.inputs[0].nbytes + op.signature.outputs[0].nbytes) for op in planar)
    share = turned / (turned + sum(map(moved, planar)))
    how = "converting the layout reads and writes each input and output of the convolutions once more"
    return evidence.share(planar).gain(share / 4 if evidence.op_times else share / 10, share / 2, how)
