"""Workspaces of cuDNN's convolutions.

Its heuristics choose a kernel by shape, type and layout, and no rule for that is published. `convolutions.json` holds
the workspaces of 7,680 shapes of common models and of 2,400 drawn ones (signals, volumes, dilated, oblong and wide
kernels, transposed), measured on an H200 by `tools/kernels/memory_device.py`. Another shape gets the workspace of the
nearest shapes of its kind, in proportion to its tensors, with a range that contained nearly all shapes of models, and
nine tenths of the drawn ones, when each was left out of the table in turn.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import product
from operator import ge, mul
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchgauge.registry import grouped

PASSES = ("forward", "data", "weight")
_FORMATS = ("fp32-nchw", "bf16-nhwc", "bf16-nchw", "fp32-nhwc")


class Workspace(NamedTuple):
    nbytes: int
    low: int
    high: int


class Convolution(NamedTuple):
    """A convolution in two or three dimensions; one of a signal is an image of height 1, as torch calls cuDNN."""

    batch: int
    in_channels: int
    out_channels: int
    groups: int
    is_transposed: bool
    sides: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of_row(cls, row: Sequence[int]) -> Convolution:
        """From a row of the table for images: [batch, in_channels, height, width, out_channels, kernel_height,
        kernel_width, stride, padding, dilation, groups, transposed]. A height and a kernel of 1 make it a signal, whose
        stride, padding and dilation are those of its length."""
        batch, taken, height, width, made, high, wide, stride, padding, dilation, groups, is_transposed = row
        is_signal = height == high == 1
        steps = (
            ((1, stride), (0, padding), (1, dilation))
            if is_signal
            else ((stride,) * 2, (padding,) * 2, (dilation,) * 2)
        )
        return cls(batch, taken, made, groups, bool(is_transposed), (height, width), (high, wide), *steps)

    @property
    def kind(self) -> tuple[object, ...]:
        """The properties that decide about the kernel first, without sizes."""
        grouping = "dense" if self.groups == 1 else "depthwise" if self.groups == self.in_channels else "grouped"
        is_matmul = not any(self.padding) and all(map(ge, self.kernel, self.sides))
        is_signal = self.sides[0] == self.kernel[0] == 1 and self.sides[-1] > 1
        is_pointwise = math.prod(self.kernel) == 1
        return grouping, self.is_transposed, is_pointwise, max(self.stride) > 1, is_matmul, is_signal, len(self.sides)

    @property
    def place(self) -> tuple[float, ...]:
        """Logarithms of its sizes and of the widths that divide its channels, for distances between shapes."""
        sizes = (self.in_channels, self.out_channels, math.prod(self.sides), math.prod(self.kernel))
        each = (self.in_channels // self.groups, self.out_channels // self.groups)
        widths = (_ALIGNMENT_WEIGHT * math.log2(min(channels & -channels, _CHANNEL_STEP)) for channels in each)
        return (math.sqrt(_BATCH_WEIGHT) * math.log(self.batch), *map(math.log, sizes), *widths)

    @property
    def made_sides(self) -> tuple[int, ...]:
        """The sides of its output, without output padding."""
        reach = (wide * (size - 1) for wide, size in zip(self.dilation, self.kernel, strict=True))
        axes = zip(self.sides, self.stride, self.padding, reach, strict=True)
        if self.is_transposed:
            return tuple(max((side - 1) * step - 2 * pad + far + 1, 1) for side, step, pad, far in axes)
        return tuple(max((side + 2 * pad - far - 1) // step + 1, 1) for side, step, pad, far in axes)

    @property
    def elements(self) -> tuple[int, int, int]:
        """Numbers of elements of the input, the output and the weights."""
        return self.padded_elements(1)

    def padded_elements(self, step: int) -> tuple[int, int, int]:
        """The same with the channels of each group rounded up to a multiple of `step`."""
        taken, made = (-(-channels // self.groups // step) * step for channels in (self.in_channels, self.out_channels))
        pixels, made_pixels = (self.batch * self.groups * math.prod(sides) for sides in (self.sides, self.made_sides))
        return pixels * taken, made_pixels * made, self.groups * taken * made * math.prod(self.kernel)


def workspace(shape: Convolution, which: str, *, itemsize: int, channels_last: bool) -> Workspace:
    name = f"{'fp32' if itemsize >= 4 else 'bf16'}-{'nhwc' if channels_last else 'nchw'}"
    column = _FORMATS.index(name) * len(PASSES) + PASSES.index(which)
    measured = measured_workspaces().get(shape)
    if measured is not None:
        return Workspace(measured[column], measured[column], measured[column])
    return estimate(shape, column)


# With each shape of the table left out in turn, 97 % are in a range from this many neighbours, widened by this share of
# their input, output and weights (`tests/predict/test_workspaces.py` checks it).
_NEIGHBOURS, _MARGIN = 4, 0.1
_MIN_SHAPES_OF_A_KIND, _WIDE_MARGIN = 5, 2.0  # with fewer measured shapes of a kind, their variation is unknown
_JUDGES = 3  # the size is the median of so many nearest: one of them may run another algorithm
_ALIGNMENT_WEIGHT = 2.0  # kernels differ by the width of their loads
_BATCH_WEIGHT = 0.1  # the same layer at another batch is nearer than another layer at the same batch


def estimate(shape: Convolution, column: int) -> Workspace:
    """From the nearest other shapes of the same kind, else of any: the size is the median of the nearest, or of the
    same layer with another batch; the range is that of several."""
    nearest, is_common = nearest_convolutions(shape)
    itemsize = 4 if _FORMATS[column // len(PASSES)].startswith("fp32") else 2
    found = [_carried_over(shape, other, measured_workspaces()[other][column], itemsize) for other in nearest]
    error = (_MARGIN if is_common else _WIDE_MARGIN) * sum(shape.elements) * itemsize
    most = most_bytes(shape, PASSES[column % len(PASSES)], itemsize)
    least = max(0, int(min(found) - error))
    is_same_layer = nearest[0]._replace(batch=shape.batch) == shape
    likely = found[0] if is_same_layer else median_low(found[:_JUDGES])
    return Workspace(min(likely, most), min(least, most), min(int(max(found) + error), most))


# Channels are rounded up to this many, for the widest loads.
_CHANNEL_STEP = 8
# Values of a tile of 6 by 6 for each value that Winograd's F(4×4, 3×3) makes, and for each weight.
_WINOGRAD_VALUES, _WINOGRAD_WEIGHTS = 36 / 16, 36 / 9


def most_bytes(shape: Convolution, which: str, itemsize: int) -> int:
    """The most that one of cuDNN's algorithms needs, in bytes: copies of all tensors in another layout, twice for those
    that also change their type, and on top of these the matrix of an explicit product, Winograd's tiles in float32, or
    for the gradient of the weights a partial sum for each sample. An implicit product needs only the copies. Of the
    measured workspaces 99.9 % of models are within it, and 99.6 % of drawn shapes: the others are Fourier transforms,
    which may need gigabytes."""
    taken, made, weights = shape.padded_elements(_CHANNEL_STEP)
    kernel = math.prod(shape.kernel)
    copies = 2 * itemsize * (taken + made) + 2 * _SUM_BYTES * weights
    # A column for each pixel of the smaller image, with the channels of the larger one's filters.
    small, filters = (
        (shape.sides, made // math.prod(shape.made_sides))
        if shape.is_transposed
        else (shape.made_sides, taken // math.prod(shape.sides))
    )
    needs = [itemsize * kernel * math.prod(small) * filters]
    if kernel == 9 and max(*shape.stride, *shape.dilation) == 1:
        needs.append(int(_SUM_BYTES * (_WINOGRAD_VALUES * (taken + made) + _WINOGRAD_WEIGHTS * weights)))
    if which == "weight":
        needs.append(_SUM_BYTES * shape.batch * weights)
    return copies + max(needs)


_SUM_BYTES = 4  # of a value in float32


@lru_cache(maxsize=4096)
def nearest_convolutions(shape: Convolution) -> tuple[list[Convolution], bool]:
    """The nearest shapes in the table, and whether it has enough of this kind."""
    kinds, here = _kinds(), shape.place
    alike = kinds.get(shape.kind)
    is_known = shape in measured_workspaces()  # then one of its kind is the shape itself
    count = 0 if alike is None else len(alike.shapes) - is_known
    groups = [alike] if alike is not None and count else [*kinds.values()]
    near: list[Convolution] = []
    for group in groups:
        squares = np.square(group.places - here).sum(1)
        last = min(_NEIGHBOURS + is_known, len(squares)) - 1
        # Rounding may change the order of shapes that are equally far: those are compared by the exact distance below.
        limit = np.partition(squares, last)[last] * (1 + 1e-9) + 1e-9
        near += [group.shapes[number] for number in np.flatnonzero(squares <= limit)]
    others = (other for other in near if other != shape)
    nearest = heapq.nsmallest(_NEIGHBOURS, others, key=lambda other: math.dist(other.place, here))
    return nearest, count >= _MIN_SHAPES_OF_A_KIND


def _carried_over(shape: Convolution, other: Convolution, nbytes: int, itemsize: int) -> int:
    """The workspace of another shape, scaled to this one. Most workspaces are whole copies of some of the tensors in
    another layout, their channels rounded up; the others scale with all tensors."""
    if nbytes <= _SMALL_BYTES:
        return nbytes
    best, most = None, max(_SMALL_BYTES, nbytes // 100) + 1
    for step in _CHANNEL_STEPS:
        sizes = other.padded_elements(step)
        for copies in _COPIES:
            rest = abs(nbytes - itemsize * sum(map(mul, copies, sizes)))
            if rest < most:
                best, most = (step, copies), rest
    if best is not None:
        return itemsize * sum(map(mul, best[1], shape.padded_elements(best[0])))
    return int(nbytes * sum(shape.elements) / sum(other.elements))


_SMALL_BYTES = 8192
_CHANNEL_STEPS = (1, 4, 8)
# Numbers of copies of the input, the output and the weights; few copies first.
_COPIES = sorted(product(range(3), range(3), range(4)), key=sum)


@cache
def measured_workspaces() -> dict[Convolution, list[int]]:
    document = json.loads((Path(__file__).parent / "convolutions.json").read_text(encoding="utf-8"))
    found = {Convolution.of_row(shape): row for shape, row in document["rows"]}
    for (batch, taken, made, groups, is_transposed, *steps), row in document["drawn"]:
        sides, kernel, stride, padding, dilation = map(tuple, steps)
        shape = Convolution(batch, taken, made, groups, bool(is_transposed), sides, kernel, stride, padding, dilation)
        found[shape] = row
    return found


class _Group(NamedTuple):
    """Shapes of one kind, and a row with the place of each."""

    shapes: list[Convolution]
    places: NDArray[np.float64]


@cache
def _kinds() -> dict[tuple[object, ...], _Group]:
    """The shapes of the table by kind."""
    found = grouped((shape.kind, shape) for shape in measured_workspaces())
    return {kind: _Group(shapes, np.array([shape.place for shape in shapes])) for kind, shapes in found.items()}
