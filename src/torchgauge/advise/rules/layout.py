"""Memory order: convolutions whose layout is not the one of their kernels, and ops that read memory out of order, which
copy it first or read single elements instead of whole vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from torchgauge.advise.registry import LEAST_PREDICTED_TIME, rule
from torchgauge.advise.rules.folding import is_pointwise_convolution
from torchgauge.facts import FREE, Cost, OpRecord, TensorSpec
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
# Their kernels make the input contiguous first, in a copy that no op of the model shows. Measured on a CPU, one thread:
# layer norm and softmax of a transposed tensor take 5 times as long, a sum of two orders 10 times, every second element
# twice. A copy in front of them takes as long; it saves time from about three ops on that read it.
_COPYING = {"aten::native_layer_norm", "aten::_softmax", "aten::_log_softmax", "aten::_fused_rms_norm"}
_POINTWISE = ("elementwise", "activation")
_LINE_BYTES = 64
# A convolution brings the order of its weights in line with that of its images in every call. Measured with AVX2 and
# AVX-512, one thread, 18 shapes: weights below a quarter of the images never cost more than the copies, larger ones do.
_WEIGHTS_OF_IMAGES = 0.25
_MOST_BETWEEN = 12
# What a convolution of 1 × 1 takes more for such an input, in times of a copy: 0.9 to 3.0 for 6 shapes of 3 to 33 MB.
_COPY_IN_CONVOLUTION = (0.8, 2.5)


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


@rule("permuted-convolution", family="layout", least_time=LEAST_PREDICTED_TIME)
def permuted_convolution(evidence: Evidence) -> Iterator[Advice]:
    """Images whose channels are innermost, with rows and columns exchanged, as by `x.permute(0, 3, 2, 1)`: neither of
    the two orders that convolutions take, so each copies its input first."""
    found: list[tuple[OpRecord, float]] = []
    for op in evidence.flow.of_category("convolution"):
        read = op.signature.inputs[0]
        if not is_pointwise_convolution(op) or not _has_exchanged_rows(read) or _is_searched_by_row(evidence, op):
            continue
        plain = TensorSpec(read.shape, read.dtype)
        cost = Cost(0, 0, read.nbytes, plain.nbytes)
        copy = replace(
            op.signature, op="aten::clone", category="copy", inputs=(read,), outputs=(plain,), attributes={}, cost=cost
        )
        seconds = evidence.seconds_of(replace(op, signature=copy))
        if seconds is not None:
            found.append((op, seconds))
    # The times of the run do not have these copies, which no op shows.
    whole = evidence.times.whole + sum(seconds for _, seconds in found)
    for op, seconds in found:
        low, high = (times * seconds / whole for times in _COPY_IN_CONVOLUTION)
        yield Advice(
            rule="permuted-convolution",
            where=Where(op.module, (op.index,), source=_permuted_at(evidence, op)),
            evidence={"shape": list(op.signature.inputs[0].shape), "copied_bytes": op.signature.inputs[0].nbytes},
            recommendation="permute in the order of memory, x.permute(0, 3, 1, 2): the convolution copies other orders",
            change=None,
            expected_gain=Gain("time_s", low, min(high, 1.0), "the copy that the convolution makes of its input"),
            risk="rows and columns are swapped: swap sizes and dimensions below too",
            confidence="medium",
        )


def _is_searched_by_row(evidence: Evidence, op: OpRecord) -> bool:
    """Whether the largest of each row is looked up behind it, as for the points of a neighbourhood: with rows and
    columns swapped it is looked up in the innermost dimension, which took three times as long as before."""
    near: OpRecord | None = op
    while near is not None and near.category in (*_POINTWISE, "convolution", "normalization"):
        near = evidence.flow.only_reader(near)
    return near is not None and near.op in ("aten::max", "aten::min") and near.signature.attributes.get("dim") == 2


def _permuted_at(evidence: Evidence, op: OpRecord) -> str | None:
    """The line of the last view that gives a tensor the order in which the op reads it."""
    read = op.signature.inputs[0]
    views = [each for each in evidence.forward[: op.index] if each.status == FREE and read in each.signature.outputs]
    return evidence.line_of(views[-1].index) if views else None


def _has_exchanged_rows(spec: TensorSpec) -> bool:
    """A batch of images in memory as (batch, columns, rows, channels), all of it."""
    if len(spec.shape) != 4 or spec.stride is None or not spec.is_floating:
        return False
    _, channels, rows, columns = spec.shape
    return min(channels, rows, columns) > 1 and spec.stride[1:] == (1, channels, rows * channels)


@rule("copies-around-convolution", family="layout")
def copies_around_convolution(evidence: Evidence) -> Iterator[Advice]:
    """Images with their channels last in memory, copied with their channels first for a convolution and back behind it:
    convolutions take both orders, and their result has that of their input."""
    for op in evidence.flow.named("aten::clone"):
        read, written = op.signature.inputs[0], op.signature.outputs[0]
        is_half = read.dtype in ("float16", "bfloat16")
        if not _has_channels_last(read) or written.stride is not None or (evidence.is_cuda and not is_half):
            continue
        between: list[OpRecord] = []
        last, reader = op, evidence.flow.only_reader(op)
        while reader is not None and _takes_any_order(reader, last) and len(between) < _MOST_BETWEEN:
            between.append(reader)
            last, reader = reader, evidence.flow.only_reader(reader)
        back = reader if reader is not None and reader.op == "aten::clone" else None
        is_there_and_back = back is not None and _is_channels_first(back.signature.inputs[0])
        if back is None or not is_there_and_back or not any(each.category == "convolution" for each in between):
            continue
        # Measured on the same shapes: 1.0 to 2 of the time of both copies alone for most (0.7 to 5 for all), as they
        # read what is not in the cache, and a convolution converts its images too.
        touched = evidence.share([op, *between, back])
        copies = evidence.share([op, back]).value / touched.value if touched.value else 0.0
        yield Advice(
            rule="copies-around-convolution",
            where=Where(op.module, (op.index, back.index)),
            evidence={"shape": list(read.shape), "copied_bytes": written.nbytes + back.signature.outputs[0].nbytes},
            recommendation="leave out .contiguous() before this convolution: it takes images with their channels last",
            change=evidence.without_calls([op], ("contiguous", "clone")),
            expected_gain=touched.gain(0.7 * copies, min(2 * copies, 1.0), "the copies to another order and back"),
            risk="rounding differs in the last bits",
            confidence="medium",
        )


def _takes_any_order(op: OpRecord, source: OpRecord) -> bool:
    """Whether it computes in the order of the images that `source` made."""
    images, given = source.signature.outputs[0], op.signature.inputs
    is_whole = bool(op.producers) and op.producers[0] == source.index and given[0].numel == images.numel
    if not is_whole or given[0].stride is not None:
        return False
    if op.category == "convolution":
        return len(given) > 1 and given[1].nbytes <= _WEIGHTS_OF_IMAGES * min(
            images.nbytes, op.signature.outputs[0].nbytes
        )
    is_pointwise = op.category in _POINTWISE and all(spec.numel == 1 for spec in given[1:])
    return is_pointwise or "batch_norm" in op.op


def _has_channels_last(spec: TensorSpec) -> bool:
    """A batch of images, all of it, as (batch, channels, rows, columns) or with pixels in a row, whose channels are
    innermost in memory."""
    if len(spec.shape) not in (3, 4) or spec.stride is None or not spec.is_floating:
        return False
    _, channels, *sizes = spec.shape
    steps = (channels,) if len(sizes) == 1 else (sizes[1] * channels, channels)
    return min(channels, *sizes) > 1 and spec.stride[1:] == (1, *steps)


def _is_channels_first(spec: TensorSpec) -> bool:
    """Images as (batch, rows, columns, channels), or as a sequence of pixels, that lie channel by channel."""
    if len(spec.shape) not in (3, 4) or spec.stride is None:
        return False
    pixels = math.prod(spec.shape[1:-1])
    return spec.shape[-1] > 1 and pixels > 1 and (spec.stride[-2], spec.stride[-1]) == (1, pixels)


@rule("strided-access", family="layout")
def strided_access(evidence: Evidence) -> Iterator[Advice]:
    flow = evidence.flow
    # Equal calls share their signature, and everything depends on that. Advice is grouped by what it says.
    known: dict[int, Access | None] = {}
    by_words: dict[str, list[tuple[OpRecord, Access]]] = {}
    for op in (*flow.named(*_COPYING), *flow.of_category(*_POINTWISE)):
        if id(op.signature) not in known:
            known[id(op.signature)] = _access(op)
        if (access := known[id(op.signature)]) is not None:
            by_words.setdefault(access.words, []).append((op, access))
    for op, access in (found for group in by_words.values() for found in group):
        # Images that become rows, or the reverse, are in order where convolutions work in channels_last: look for one
        # directly before the op, or with an activation or a norm in between.
        near = [*flow.sources(op)]
        near += [source for first in near for source in flow.sources(first)]
        is_transposed_image = len(access.spec.shape) == 4 and step(access.spec) == 1
        follows_images = is_transposed_image and any(source.category == "convolution" for source in near)
        yield Advice(
            rule="strided-access",
            where=Where(op.module, (op.index,)),
            evidence={
                "op": op.op,
                "shape": list(access.spec.shape),
                "stride": list(access.spec.stride or ()),
                "bytes_moved": moved(op),
            },
            recommendation=access.words,
            change=Patch(_CHANNELS_LAST) if follows_images else None,
            # Caches and prefetching hide most of it: of the traffic wasted, a tenth to a half was measured as time.
            expected_gain=evidence.share([op]).gain(
                0.1 * access.wasted, 0.5 * access.wasted, "the extra memory traffic of strided reads", fewer_calls=0.0
            ),
            risk=access.risk,
            confidence="medium",
        )


def _access(op: OpRecord) -> Access | None:
    if op.op in _COPYING:
        read = op.signature.inputs[0]
        if read.stride is None or read.distinct_numel < read.numel:
            return None
        words = "store this tensor in the order in which it is read: the kernel copies any other at each call"
        return Access(read, words, 2 * read.nbytes / (moved(op) + 2 * read.nbytes))
    if all(spec.stride is None for spec in op.signature.inputs) or not op.signature.outputs:  # torch.equal has none
        return None
    elements = op.signature.outputs[0].numel
    large = [spec for spec in op.signature.inputs if spec.distinct_numel == elements > 1]  # not broadcast
    widest = max(large, key=step, default=None)
    if widest is not None and step(widest) > 1:
        # Every element fetched brings its neighbours along, at most a cache line's.
        words = "take halves or chunks instead of every n-th element: it uses little of each cache line"
        risk = "other elements are taken: weights or data must be put in that order too"
        return Access(widest, words, _fetched(op, widest, step(widest)), risk)
    # Where the innermost dimensions of two operands differ, one is read in order, the other element by element.
    strided = next((spec for spec in large if spec.stride is not None), None)
    if len({innermost(spec) for spec in large}) < 2 or strided is None:
        return None
    words = "make both operands in the same order in memory: mixing strides makes this op slow"
    return Access(strided, words, _fetched(op, strided, _LINE_BYTES))


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
