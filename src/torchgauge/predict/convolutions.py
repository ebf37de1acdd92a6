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
from functools import cache, lru_cache
from itertools import product
from operator import mul
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
    """A convolution in two dimensions; in one dimension its height is 1."""

    batch: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel_height: int
    kernel_width: int
    stride: int
    padding: int
    dilation: int
    groups: int
    transposed: int

    @property
    def kind(self) -> tuple[object, ...]:
        """The properties that decide about the kernel first, without sizes."""
        grouping = "dense" if self.groups == 1 else "depthwise" if self.groups == self.in_channels else "grouped"
        is_matmul = self.kernel_height >= self.height and self.kernel_width >= self.width and not self.padding
        is_1d = self.height == self.kernel_height == 1 and self.width > 1
        is_pointwise = self.kernel_height * self.kernel_width == 1
        return grouping, self.transposed, is_pointwise, self.stride > 1, is_matmul, is_1d

    @property
    def place(self) -> tuple[float, ...]:
        """Logarithms of its sizes, for distances between shapes."""
        sizes = (self.in_channels, self.out_channels, self.height * self.width, self.kernel_height * self.kernel_width)
        return (math.sqrt(_BATCH_WEIGHT) * math.log(self.batch), *map(math.log, sizes))

    @property
    def elements(self) -> tuple[int, int, int]:
        """Numbers of elements of the input, the output and the weights."""
        reach = [self.dilation * (kernel - 1) for kernel in (self.kernel_height, self.kernel_width)]
        if self.transposed:
            sides = [
                (s - 1) * self.stride - 2 * self.padding + r + 1
                for s, r in zip((self.height, self.width), reach, strict=True)
            ]
            weights = self.in_channels * self.out_channels // self.groups
        else:
            sides = [
                (s + 2 * self.padding - r - 1) // self.stride + 1
                for s, r in zip((self.height, self.width), reach, strict=True)
            ]
            weights = self.out_channels * self.in_channels // self.groups
        taken = self.batch * self.in_channels * self.height * self.width
        made = self.batch * self.out_channels * max(sides[0], 1) * max(sides[1], 1)
        return taken, made, weights * self.kernel_height * self.kernel_width


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
    return Workspace(found[0], max(0, int(min(found) - error)), int(max(found) + error))


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
    return {Convolution(*shape): row for shape, row in document["rows"]}


class _Group(NamedTuple):
    """Shapes of one kind, and a row with the place of each."""

    shapes: list[Convolution]
    places: NDArray[np.float64]


@cache
def _kinds() -> dict[tuple[object, ...], _Group]:
    """The shapes of the table by kind."""
    found = grouped((shape.kind, shape) for shape in measured_workspaces())
    return {kind: _Group(shapes, np.array([shape.place for shape in shapes])) for kind, shapes in found.items()}
