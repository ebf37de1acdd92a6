"""Memory order: convolutions whose layout is not the one of their kernels, and ops that read memory out of order, which
copy it first or read single elements instead of whole vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.processor import (
    LEAST_GROUP,
    MOST_TAPS,
    READ_IN_PLACE,
    REFERENCE,
    call_pace,
    channels_in_group,
    is_in_patches,
    is_pointwise,
    pass_seconds,
)
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import FREE, OpRecord, TensorSpec
from torchgauge.hardware import Pace

# cuDNN names the kernels that convert the layout.
_CONVERSIONS = ("nchwtonhwc", "nhwctonchw")
_LEAST_MACS = 0.5
_CHANNELS_LAST = """\
model = model.to(memory_format=torch.channels_last)
inputs = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs]
"""
# On a CPU in float32: the share of the predicted time that 78 models (of timm, torchvision and eight others) saved, one
# thread of an EPYC with AVX-512, fitted to passes over images and results of convolutions, to the calls of depthwise
# ones and to the times of pools and resizes. Small images are copied into patches otherwise. By cross-validation 0.67
# to 2.3 times the fit was saved (10 % to 90 %); 15 of the models saved as much with AVX2.
_PASSES, _PASSES_IN_GROUPS, _PASSES_OF_POINTWISE, _PASSES_IN_PATCHES, _DEPTHWISE_CALL_S = 4.0, 1.9, 0.7, 4.5, 14e-6
_FASTER_IN_CHANNELS_LAST = {"max_pool": 0.9, "avg_pool": 0.6, "upsample": 0.6}
_UNSURE_OF_LAYOUT, _MOST_OF_LAYOUT = (0.7, 2.0), 0.9


@rule("channels-last", family="layout")
def channels_last(evidence: Evidence) -> Iterator[Advice]:
    if not evidence.is_cuda or not evidence.totals.macs:
        return
    planar = [op for op in evidence.forward if _is_planar(op)]
    if sum(op.cost.macs for op in planar) < _LEAST_MACS * sum(op.cost.macs for op in evidence.forward):
        return
    measured = evidence.capture.measured.ops if evidence.capture.measured else {}
    kernels = [str(measured.get(op.index, {}).get("kernels") or "").lower() for op in planar]
    converted = sum(any(word in names for word in _CONVERSIONS) for names in kernels)
    if evidence.op_times and not converted:
        return
    spared = sum(2 * (op.signature.inputs[0].nbytes + op.signature.outputs[0].nbytes) for op in planar)
    share = spared / (spared + sum(map(moved, planar)))
    yield Advice(
        rule="channels-last",
        where=Where("", tuple(op.index for op in planar)),
        evidence={"convolutions": len(planar), "converted": converted if evidence.op_times else None},
        recommendation="keep images in channels_last: half-precision kernels use it and convert other layouts",
        change=Patch(_CHANNELS_LAST),
        expected_gain=evidence.share(planar).gain(
            share / 4 if evidence.op_times else share / 10,
            share / 2,
            "converting the layout reads and writes each input and output of the convolutions once more",
        ),
        risk="ops without a channels_last kernel convert it back: check strides",
        confidence="high" if converted else "medium",
    )


def _is_planar(op: OpRecord) -> bool:
    """A half-precision convolution over contiguous images."""
    if op.category != "convolution" or op.signature.dtype not in ("float16", "bfloat16"):
        return False
    images = op.signature.inputs[0]
    return len(images.shape) == 4 and images.stride is None and images.shape[1] > 1 and images.shape[2] > 1


@rule("image-layout", family="layout", option="layout")
def image_layout(evidence: Evidence) -> Iterator[Advice]:
    """On a CPU: convolutions copy images whose channels lie apart into the order of their kernels and the results back,
    and pools have vector code only where channels are innermost."""
    times, pace = evidence.times, (evidence.peaks.pace if evidence.peaks else None) or REFERENCE
    planar = [op for op in evidence.forward if _is_of_planar_images(op)]
    if evidence.device != "cpu" or evidence.is_train or not times.total or any(map(_is_instance_norm, planar)):
        return
    # Weights of five dimensions cannot be in channels_last. Images that are taken apart are copied before and behind.
    reshaped = [op for op in evidence.forward if _is_of_planar_images(op) and _takes_channels_apart(op)]
    last = max((op.index for op in planar if op.category == "convolution"), default=-1)
    is_apart = any(op.index < last or op.status != FREE for op in reshaped)
    if is_apart or any(len(param.spec.shape) > 4 for param in evidence.capture.params):
        return
    # Torch's plain loop for long depthwise filters: of two networks for EEG one got 53 % faster, one 69 % slower.
    if any(_is_long_depthwise(op) for op in planar if op.category == "convolution"):
        return
    views = [evidence.line_of(op.index) for op in reshaped if _is_view(evidence, op)]
    also = f", and write .reshape() for .view() at {views[0]}" if views else ""
    saved_s, touched = 0.0, list[OpRecord]()
    for op in planar:
        pooled = next((part for name, part in _FASTER_IN_CHANNELS_LAST.items() if name in op.op), 0.0)
        if op.category == "convolution":
            saved_s += _copies_around(op, pace)
        elif pooled:
            saved_s += pooled * times.seconds[op.index]
        else:
            continue
        touched.append(op)
    share = min(saved_s / times.total, times.share(op.index for op in touched), _MOST_OF_LAYOUT)
    low, high = (odds / (1 + odds) for odds in (share / (1 - share) * each for each in _UNSURE_OF_LAYOUT))
    yield Advice(
        rule="image-layout",
        where=Where("", tuple(op.index for op in touched)),
        evidence={"ops": len(touched)},
        recommendation=f"keep weights and images in channels_last{also}: convolutions copy less, and pooling is faster",
        change=None if views else Patch(_CHANNELS_LAST),
        expected_gain=Gain(
            "time_s",
            low,
            high,
            "measured savings for each byte of image and result, by kind of convolution",
            frozenset(op.index for op in touched),
        ),
        risk="rounding differs; outputs with four dimensions are in channels_last too",
        confidence="medium",
    )


def _is_long_depthwise(op: OpRecord) -> bool:
    group = channels_in_group(op)
    return group is not None and group < LEAST_GROUP and max(op.signature.inputs[1].shape[2:]) > MOST_TAPS


def _takes_channels_apart(op: OpRecord) -> bool:
    """Whether it makes another number of dimensions of images, or is a norm over channels and pixels."""
    image, result = op.signature.inputs[0], op.signature.outputs[0] if op.signature.outputs else None
    has_pixels = image.shape[1] > 1 and prod(image.shape[2:]) > 1
    is_norm = op.op == "aten::native_layer_norm" and prod(image.shape[2:]) > 1
    is_view = op.status == FREE and op.op.endswith("view") and result is not None and len(result.shape) != 4
    return has_pixels and (is_norm or is_view)


def _is_view(evidence: Evidence, op: OpRecord) -> bool:
    """Whether the code calls `.view()`, which makes no copies, for what channels_last makes a copy of: positions with
    their channels together."""
    place, shape, source = evidence.any_code_at(op), op.signature.inputs[0].shape, evidence.flow.source(op)
    is_joined = op.signature.outputs[0].shape[:2] != shape[:2]
    if place is None or not is_joined or (source is not None and source.op == "aten::clone"):
        return False  # what `.contiguous()` has made is in order whatever the images are
    return bool(place[0].calls(place[1], "view")) and not place[0].calls(place[1], "contiguous")


def _is_of_planar_images(op: OpRecord) -> bool:
    images = op.signature.inputs[0] if op.signature.inputs else None
    is_planar = images is not None and len(images.shape) == 4 and images.stride is None
    return is_planar and images is not None and images.dtype == "float32"


def _is_instance_norm(op: OpRecord) -> bool:
    """Norms by the statistics of an image, for which torch puts channels last in order again (a U-Net with them takes
    14 to 22 % longer)."""
    return "instance_norm" in op.op or ("batch_norm" in op.op and bool(op.signature.attributes.get("training")))


def _copies_around(op: OpRecord, pace: Pace) -> float:
    """Seconds that a convolution of planar images takes longer."""
    image, weight, made = op.signature.inputs[0], op.signature.inputs[1], op.signature.outputs[0]
    passed = image.nbytes * (image.shape[1] > READ_IN_PLACE) + made.nbytes
    group = channels_in_group(op)
    if group is not None:
        call_s = _DEPTHWISE_CALL_S * call_pace(pace) * (group < LEAST_GROUP)
        return call_s + _PASSES_IN_GROUPS * pass_seconds(pace, passed)
    if is_pointwise(op):
        return _PASSES_OF_POINTWISE * pass_seconds(pace, passed)
    if is_in_patches(op):
        return _PASSES_IN_PATCHES * pass_seconds(pace, passed + weight.nbytes)
    return _PASSES * pass_seconds(pace, passed)


@dataclass(frozen=True, slots=True)
class Access:
    """An input that is read out of order; in order, `wasted` of the op's traffic would go away."""

    spec: TensorSpec
    words: str
    wasted: float
    risk: str = "a .contiguous() for this op alone takes as long as it saves"


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
