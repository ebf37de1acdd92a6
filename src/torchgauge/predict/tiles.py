"""A model of the time that matrix products take on a GPU: in tiles, in waves over the multiprocessors.

A library has kernels for tiles of several shapes, and may split the depth of a product over several blocks; it chooses
one that is nearly the fastest. So the time grows in steps with a size, and a kernel's distance from this model varies
far more slowly with the sizes than its distance from a roofline. Convolutions are products of pixels, channels and the
weights of a filter; their gradients are two products.

The parameters are fitted to measured kernels by tools/kernels/kernel_tables.py; a table stores them with its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchgauge.predict.blocks import Array, closest_parameters

_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (64, 32), (16, 64), (64, 16))
_SPLITS = (1, 2, 4, 8, 16)
_CHOICES = [(number, split) for number in range(len(_TILES)) for split in _SPLITS]
_TILE_OF = np.array([number for number, _ in _CHOICES])
_TILE_ROWS, _TILE_COLUMNS = (np.array([float(_TILES[number][side]) for number, _ in _CHOICES]) for side in (0, 1))
_SPLIT = np.array([float(split) for _, split in _CHOICES])
_MULTIPROCESSORS = 132  # of the H200, whose table has such a model
# A part of the depth smaller than this is not split off; the depth is processed in steps of 32.
_MIN_DEPTH, _DEPTH_STEP = 64.0, 32.0
_L2_BYTES_PER_US = 10e6
# Factors on the logarithm in a soft minimum and maximum: a library's choice is not always the best.
_MINIMUM_SHARPNESS, _MAXIMUM_SHARPNESS = 12.0, 4.0
ALIGNMENTS = (1, 2, 4, 8)
# By tile: the logarithm of its efficiency, of the microseconds before and after its inner loop, how many blocks share
# a multiprocessor; then launch, sum of split parts, memory, cache (logarithms), and what coarse alignments and strides
# take, as logarithms of time.
_COUNT = len(_TILES)
DEFAULTS = np.array([*[-0.4] * _COUNT, *[0.3] * _COUNT, *[0.0] * _COUNT, 0.8, 0.5, 0.3, -0.5, *[0.0] * 5])


class Product(NamedTuple):
    """`rows` by `depth` times `depth` by `columns`, `batch` of them; `group` are those with equal parameters."""

    group: str
    rows: int
    columns: int
    depth: int
    batch: int


@dataclass(frozen=True, slots=True)
class Tiling:
    """The products that an op is. `alignment` is how many elements a load can take, `is_strided` a convolution that
    leaves pixels out."""

    products: tuple[Product, ...]
    alignment: int
    is_strided: bool = False


def sizes_of(product: Product, tiling: Tiling, flops_per_s: float, cold_bytes: float, nbytes: float) -> list[float]:
    """A row of what `microseconds` takes."""
    flags = [float(tiling.alignment == width) for width in ALIGNMENTS] + [float(tiling.is_strided)]
    work = [product.rows, product.columns, product.depth, product.batch]
    return [*map(float, work), flops_per_s * 1e-6, cold_bytes, max(nbytes - cold_bytes, 1.0), *flags]


def choice_microseconds(parameters: Array, sizes: Array, numeric: Any = np) -> Array:
    """By row and by choice of a tile and of parts of the depth, the time of the multiprocessors; `numeric` is numpy, or
    torch where the parameters are fitted."""
    across, down, split = (numeric.asarray(value) for value in (_TILE_ROWS, _TILE_COLUMNS, _SPLIT))
    rows, columns, depth, batch, rate = (sizes[:, place : place + 1] for place in range(5))
    efficiency, around, sharing = (parameters[:, _TILE_OF + start * _COUNT] for start in range(3))
    summing = parameters[:, 3 * _COUNT + 1]
    blocks = numeric.ceil(rows / across) * numeric.ceil(columns / down) * batch * split
    together = 1 + 3 / (1 + numeric.exp(-sharing))
    waves = blocks / (_MULTIPROCESSORS * together)
    # The last wave is not quite as long as a full one.
    waves = numeric.where(waves < 1, numeric.ones_like(waves), 0.2 * waves + 0.8 * numeric.ceil(waves))
    busy = numeric.minimum(together, blocks / _MULTIPROCESSORS)
    busy = numeric.where(busy < 1, numeric.ones_like(busy), busy)
    slower = numeric.exp((parameters[:, 3 * _COUNT + 4 :] * sizes[:, 7:]).sum(-1))[:, None]
    steps = numeric.ceil(depth / split / _DEPTH_STEP) * _DEPTH_STEP
    inner = 2 * across * down * steps * busy / (rate / _MULTIPROCESSORS) * numeric.exp(-efficiency) * slower
    took = waves * (inner + numeric.exp(around))
    # Partial sums in float32, at about 3 TB/s.
    parts = numeric.exp(summing)[:, None] + rows * columns * batch * split * (4 / 3e6)
    took = took + numeric.where(split > 1, parts, numeric.zeros_like(parts))
    return numeric.where((split > 1) & (depth / split < _MIN_DEPTH), took * 1e6, took)


def microseconds(parameters: Array, sizes: Array, bytes_per_s: float, took: Array, numeric: Any = np) -> Array:
    """By row, from what each choice takes."""
    launch, memory, cache = (parameters[:, 3 * _COUNT + place] for place in (0, 2, 3))
    best = (took**-_MINIMUM_SHARPNESS).sum(-1) ** (-1 / _MINIMUM_SHARPNESS)
    from_memory = sizes[:, 5] / (bytes_per_s * 1e-6) * numeric.exp(memory)
    moved = from_memory + sizes[:, 6] / _L2_BYTES_PER_US * numeric.exp(cache)
    return (best**_MAXIMUM_SHARPNESS + moved**_MAXIMUM_SHARPNESS) ** (1 / _MAXIMUM_SHARPNESS) + numeric.exp(launch)


def views(took: NDArray[np.float64]) -> NDArray[np.float32]:
    """Features of the choices, for the trees: the fastest tile and number of parts, and in octaves how much slower the
    fastest choice with each tile and with each number of parts is."""
    best = took.argmin(1)
    fastest = np.log2(took[np.arange(len(took)), best])
    by_tile = np.log2(took.reshape(len(took), _COUNT, len(_SPLITS)))
    slower = np.concatenate([by_tile.min(2), by_tile.min(1)], 1) - fastest[:, None]
    found: NDArray[np.float32] = np.column_stack(
        [_TILE_OF[best], np.log2(_SPLIT[best]), np.minimum(slower, 20.0), fastest]
    ).astype(np.float32)
    return found


class Tiled(NamedTuple):
    """An op with the rate of its arithmetic, the bytes that come from memory, and all its bytes."""

    tiling: Tiling
    flops_per_s: float
    cold_bytes: float
    nbytes: float


@dataclass(frozen=True)
class TileModel:
    parameters: Mapping[str, NDArray[np.float64]]  # by group

    def octaves(self, tiled: Sequence[Tiled], bytes_per_s: float) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """For each place: the base-2 logarithm of seconds, and the views of its first and last product."""
        rows = [(number, one, product) for number, one in enumerate(tiled) for product in one.tiling.products]
        owners = np.array([number for number, _, _ in rows])
        given = np.array([closest_parameters(self.parameters, product.group) for _, _, product in rows])
        sizes = np.array(
            [sizes_of(product, one.tiling, one.flops_per_s, one.cold_bytes, one.nbytes) for _, one, product in rows]
        )
        took = choice_microseconds(given, sizes)
        whole = np.bincount(owners, microseconds(given, sizes, bytes_per_s, took))
        seen, numbers = views(took), np.arange(len(tiled))
        first, last = np.searchsorted(owners, numbers), np.searchsorted(owners, numbers, "right") - 1
        return np.log2(whole * 1e-6), np.concatenate([seen[first], seen[last]], 1)
