"""Workspaces of cuDNN's convolutions.

Its heuristics choose a kernel by shape, type and layout, and no rule for that is published. `convolutions.json` holds
the workspaces of 7,680 shapes of common models, measured on an H200 by `tools/kernels/memory_device.py`. Another shape
gets the workspace of the nearest shapes of its kind, in proportion to its tensors, with a range that contained nearly
all shapes when each was left out of the table in turn.
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
        is_strided, is_dilated = max(self.stride) > 1, max(self.dilation) > 1
        return grouping, self.is_transposed, is_pointwise, is_strided, is_matmul, is_signal, len(self.sides), is_dilated

    @property
    def place(self) -> tuple[float, ...]:
        """Logarithms of its sizes, for distances between shapes."""
        sizes = (self.in_channels, self.out_channels, math.prod(self.sides), math.prod(self.kernel))
        return (math.sqrt(_BATCH_WEIGHT) * math.log(self.batch), *map(math.log, sizes))

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
        taken = self.batch * self.in_channels * math.prod(self.sides)
        made = self.batch * self.out_channels * math.prod(self.made_sides)
        return taken, made, self.in_channels * self.out_channels // self.groups * math.prod(self.kernel)


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
_BATCH_WEIGHT = 0.1  # the same layer at another batch is nearer than another layer at the same batch


def estimate(shape: Convolution, column: int) -> Workspace:
    """From the nearest other shapes of the same kind, else of any: the size of the nearest, the range of several."""
    nearest, is_common = nearest_convolutions(shape)
    itemsize = 4 if _FORMATS[column // len(PASSES)].startswith("fp32") else 2
    found = [_carried_over(shape, other, measured_workspaces()[other][column], itemsize) for other in nearest]
    error = (_MARGIN if is_common else _WIDE_MARGIN) * sum(shape.elements) * itemsize
    most = most_bytes(shape, PASSES[column % len(PASSES)], itemsize)
    least = max(0, int(min(found) - error))
    return Workspace(min(found[0], most), min(least, most), min(int(max(found) + error), most))


# Channels are rounded up to this many, for the widest loads.
_CHANNEL_STEP = 8
# Values of a tile of 6 by 6 for each value that Winograd's F(4×4, 3×3) makes, and for each weight.
_WINOGRAD_VALUES, _WINOGRAD_WEIGHTS = 36 / 16, 36 / 9


def most_bytes(shape: Convolution, which: str, itemsize: int) -> int:
    """The most that one of cuDNN's algorithms needs, in bytes: copies of all tensors in another layout, twice for those
    that also change their type, and on top of these the matrix of an explicit product, Winograd's tiles in float32, or
    for the gradient of the weights a partial sum for each sample. An implicit product needs only the copies. Of the
    measured workspaces 99.9 % are within it."""
    groups = shape.groups
    taken, made = (
        shape.batch * math.prod(sides) * groups * _padded(channels // groups)
        for sides, channels in ((shape.sides, shape.in_channels), (shape.made_sides, shape.out_channels))
    )
    kernel = math.prod(shape.kernel)
    weights = groups * _padded(shape.in_channels // groups) * _padded(shape.out_channels // groups) * kernel
    copies = 2 * itemsize * (taken + made) + 2 * _SUM_BYTES * weights
    # A column for each pixel of the smaller side of a transposed convolution, whose input is the result of its twin.
    columns, channels = (
        (shape.sides, shape.out_channels) if shape.is_transposed else (shape.made_sides, shape.in_channels)
    )
    needs = [itemsize * kernel * shape.batch * math.prod(columns) * groups * _padded(channels // groups)]
    if kernel == 9 and max(*shape.stride, *shape.dilation) == 1:
        needs.append(int(_SUM_BYTES * (_WINOGRAD_VALUES * (taken + made) + _WINOGRAD_WEIGHTS * weights)))
    if which == "weight":
        needs.append(_SUM_BYTES * shape.batch * weights)
    return copies + max(needs)


_SUM_BYTES = 4  # of a value in float32


def _padded(channels: int) -> int:
    return -(-channels // _CHANNEL_STEP) * _CHANNEL_STEP


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
    another layout; the others scale with all tensors."""
    if nbytes <= _SMALL_BYTES:
        return nbytes
    sizes = [itemsize * count for count in other.elements]
    for copies in _COPIES:
        if abs(nbytes - sum(map(mul, copies, sizes))) <= max(_SMALL_BYTES, nbytes // 100):
            return itemsize * sum(map(mul, copies, shape.elements))
    return int(nbytes * sum(shape.elements) / sum(other.elements))


_SMALL_BYTES = 8192
# Numbers of copies of the input, the output and the weights; few copies first.
_COPIES = sorted(product(range(3), range(3), range(4)), key=sum)


@cache
def measured_workspaces() -> dict[Convolution, list[int]]:
    document = json.loads((Path(__file__).parent / "convolutions.json").read_text(encoding="utf-8"))
    return {Convolution.of_row(shape): row for shape, row in document["rows"]}


class _Group(NamedTuple):
    """Shapes of one kind, and a row with the place of each."""

    shapes: list[Convolution]
    places: NDArray[np.float64]


@cache
def _kinds() -> dict[tuple[object, ...], _Group]:
    """The shapes of the table by kind."""
    found = grouped((shape.kind, shape) for shape in measured_workspaces())
    return {kind: _Group(shapes, np.array([shape.place for shape in shapes])) for kind, shapes in found.items()}
