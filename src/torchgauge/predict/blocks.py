"""Models of the time that attention, recurrent layers and streamed ops take on a GPU.

Attention runs in blocks of queries, each over all tiles of keys, in waves over the multiprocessors; with one query, a
step of decoding, the keys are split over several blocks. A recurrent layer runs step by step: a step takes as long as
its latency and its weights and work allow, and layers overlap. A streamed op (norms, reductions, resampling, pooling)
takes as long as its traffic or its busiest thread or block: kernels divide their work in different ways, and some give
all channels of a pixel to one thread. As with products (`tiles`), a kernel's distance from this model varies far more
slowly with the sizes than its distance from a roofline.

The parameters are fitted to measured kernels by tools/kernels/kernel_tables.py; a table stores them with its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = Any  # of numpy, or of torch where the parameters are fitted
_MULTIPROCESSORS = 132  # of the H200, whose table has such models
_BLOCKS = tuple((rows, split) for split in (1, 2, 4, 8, 16, 32) for rows in (64, 128))
_BLOCK_ROWS, _SPLIT = (np.array([float(block[side]) for block in _BLOCKS]) for side in (0, 1))
_TILE_KEYS = 64.0  # of a tile
# Up to this number of queries a decoding kernel runs, which splits the keys and shares them among query heads.
_FEW_QUERIES = 8
# Bytes of keys and of masks that one multiprocessor loads in a microsecond; bytes of weights that all of them load.
_LOADED, _MASK_LOADED, _WEIGHTS_LOADED = 50e3, 40e3, 3e6
# Factors on the logarithm in a soft minimum and maximum: a library's choice is not always the best.
_MINIMUM_SHARPNESS, _MAXIMUM_SHARPNESS = 12.0, 4.0
_WIDTHS = np.log2([16.0, 32.0, 64.0, 128.0, 192.0, 256.0])
# The logarithm of the efficiency at these widths of a head; what other widths than multiples of 64 take; then
# logarithms: microseconds of a block outside its loop, of a launch, loading, memory, mask, of the sum over split keys;
# blocks per multiprocessor, how far query heads share keys, and what a causal mask changes of the efficiency.
ATTENTION_DEFAULTS = np.array([-1.5, -1.2, -0.9, -0.7, -0.9, -0.7, 0.2, 0.5, 0.8, 0.0, 0.2, 0.0, 0.7, 0.0, 0.0, 0.0])
# Exponents less one of the number of layers and directions; logarithms: microseconds of a step, loading of weights,
# efficiency in steps, pointwise work, efficiency of the products before the steps, microseconds of a layer; and what
# training adds.
RECURRENT_DEFAULTS = np.array([-0.4, -0.1, 1.2, 0.0, -2.0, 0.0, -1.5, 2.5, 0.05])


# Logarithms of the time that each term of a streamed op takes, in the units of `Streaming.sizes`: a launch, traffic,
# and the ways to divide work, which are small until they are fitted.
STREAM_DEFAULTS = np.array([0.7, 0.0, -4.0, -4.0, -4.0, -4.0, -4.0, -4.0, -4.0, -4.0])
# Threads and blocks of 512 threads that the device runs at a time.
_THREADS, _BLOCK_THREADS, _RUNNING_BLOCKS = 2048 * _MULTIPROCESSORS, 512, 4 * _MULTIPROCESSORS


@dataclass(frozen=True, slots=True)
class Attention:
    """`rows` are batch times heads; `group` are kernels with equal parameters."""

    group: str
    rows: int
    queries: int
    keys: int
    width: int
    heads_per_key: int
    itemsize: int
    is_causal: bool
    is_masked: bool
    is_backward: bool

    @property
    def is_decoding(self) -> bool:
        return self.queries <= _FEW_QUERIES

    def sizes(self, flops_per_s: float, nbytes: float) -> list[float]:
        """A row of what `attention_microseconds` takes."""
        width = min(max(log2(self.width), _WIDTHS[0]), _WIDTHS[-1])
        between = [float(np.interp(width, _WIDTHS, row)) for row in np.eye(len(_WIDTHS))]
        flags = (self.width % 64 != 0, self.is_causal, self.is_masked, self.is_decoding, self.is_backward)
        work = (self.rows, self.queries, self.keys, self.width, self.heads_per_key, self.itemsize)
        return [*between, *map(float, (*flags, *work)), flops_per_s * 1e-6, nbytes]


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Layers of a recurrent network; `group` are those with equal parameters."""

    group: str
    steps: int
    layers: int
    directions: int
    batch: int
    features: int
    units: int
    gates: int
    itemsize: int
    is_backward: bool
    keeps_state: bool  # for a backward pass

    def sizes(self, flops_per_s: float, nbytes: float) -> list[float]:
        """A row of what `recurrent_microseconds` takes."""
        work = (self.steps, self.layers, self.directions, self.batch, self.features, self.units, self.gates)
        rate = flops_per_s * 1e-6 / (2 if self.is_backward else 1)
        return [*map(float, (*work, self.itemsize, self.keeps_state)), rate]


@dataclass(frozen=True, slots=True)
class Streaming:
    """An op that reads and writes its tensors once. `outer`, `middle` and `inner` are the sizes outside, along and
    inside the dimension that it works on; `group` are kernels with equal parameters."""

    group: str
    outer: int
    middle: int
    inner: int
    elements: int
    flops: float

    def sizes(self, flops_per_s: float, nbytes: float) -> list[float]:
        """A row of what `stream_microseconds` takes: microseconds of traffic at the peak of the H200, and steps of the
        busiest thread or block, each times about what a step takes (in microseconds)."""
        outer, middle, inner = max(self.outer, 1), max(self.middle, 1), max(self.inner, 1)
        across = outer * inner
        return [
            nbytes / 4.8e6,
            0.05 * outer * -(-middle // _THREADS), 0.01 * outer * -(-inner // _THREADS),
            0.01 * middle * -(-across // _THREADS), 0.3 * across / _BLOCK_THREADS * -(-middle // _RUNNING_BLOCKS),
            0.3 * middle / _BLOCK_THREADS * -(-across // _RUNNING_BLOCKS),
            0.3 * middle * inner / _BLOCK_THREADS * -(-outer // _RUNNING_BLOCKS), 1e-5 * self.elements,
            1e-6 * self.flops,
        ]  # fmt: skip


def stream_microseconds(parameters: Array, sizes: Array, bytes_per_s: float, numeric: Any = np) -> Array:
    """By row, the sum of the terms."""
    terms = numeric.exp(parameters)
    return terms[:, 0] + (terms[:, 1:] * sizes).sum(-1)


def attention_microseconds(parameters: Array, sizes: Array, bytes_per_s: float, numeric: Any = np) -> Array:
    """By row; `numeric` is numpy, or torch where the parameters are fitted."""
    block, split = numeric.asarray(_BLOCK_ROWS), numeric.asarray(_SPLIT)
    odd, causal, masked, decoding, backward = (sizes[:, place : place + 1] for place in range(6, 11))
    rows, queries, keys, width, shared, itemsize, rate, nbytes = (
        sizes[:, place : place + 1] for place in range(11, 19)
    )
    slower, around, launch, load, memory, mask, summing, sharing, packing, with_causal = (
        parameters[:, place : place + 1] for place in range(6, 16)
    )
    efficiency = (parameters[:, :6] * sizes[:, :6]).sum(-1)[:, None] - odd * slower + causal * with_causal
    heads = rows / shared ** (decoding / (1 + numeric.exp(-packing)))
    blocks = heads * numeric.ceil(queries / block) * split
    tiles = numeric.ceil(keys / (_TILE_KEYS * split))
    # With a causal mask half of the tiles are skipped.
    each = numeric.where(causal > 0, (tiles + 1) / 2, tiles)
    # The backward pass has five products, the forward pass two.
    arithmetic = (
        4 * (1 + 1.5 * backward) * block * _TILE_KEYS * width / (rate / _MULTIPROCESSORS) * numeric.exp(-efficiency)
    )
    loaded = 2 * _TILE_KEYS * width * itemsize * (1 + backward) / _LOADED * numeric.exp(-load)
    tile = (arithmetic**_MAXIMUM_SHARPNESS + loaded**_MAXIMUM_SHARPNESS) ** (1 / _MAXIMUM_SHARPNESS)
    tile = tile + masked * block * _TILE_KEYS * itemsize / _MASK_LOADED * numeric.exp(-mask)
    together = 1 + 3 / (1 + numeric.exp(-sharing))
    waves = blocks / (_MULTIPROCESSORS * together)
    waves = numeric.where(waves < 1, numeric.ones_like(waves), 0.2 * waves + 0.8 * numeric.ceil(waves))
    busy = numeric.minimum(together + 0 * blocks, blocks / _MULTIPROCESSORS)
    busy = numeric.where(busy < 1, numeric.ones_like(busy), busy)
    took = waves * (each * tile * busy + numeric.exp(around))
    took = numeric.maximum(took, tiles * tile + numeric.exp(around))  # the longest block
    took = took + numeric.where(split > 1, numeric.exp(summing) + 0 * took, numeric.zeros_like(took))
    cannot = (split > 1) & ((decoding == 0) | (keys / split < _TILE_KEYS))
    took = numeric.where(cannot, took * 1e6, took)
    best = (took**-_MINIMUM_SHARPNESS).sum(-1) ** (-1 / _MINIMUM_SHARPNESS)
    moved = nbytes[:, 0] / (bytes_per_s * 1e-6) * numeric.exp(memory[:, 0])
    return (best**_MAXIMUM_SHARPNESS + moved**_MAXIMUM_SHARPNESS) ** (1 / _MAXIMUM_SHARPNESS) + numeric.exp(
        launch[:, 0]
    )


def recurrent_microseconds(parameters: Array, sizes: Array, bytes_per_s: float, numeric: Any = np) -> Array:
    """By row, as above."""
    steps, layers, directions, batch, features, units, gates, itemsize, kept, rate = (
        sizes[:, place] for place in range(10)
    )
    with_layers, with_directions, latency, weights, efficiency, pointwise, before, layer, training = (
        parameters[:, place] for place in range(9)
    )
    loaded = gates * units**2 * itemsize / _WEIGHTS_LOADED * numeric.exp(-weights)
    arithmetic = 2 * numeric.ceil(batch / 16) * 16 * gates * units**2 / rate * numeric.exp(-efficiency)
    step = numeric.exp(latency) + (loaded**2 + arithmetic**2) ** 0.5
    step = step + batch * gates * units / 6e4 * numeric.exp(-pointwise)
    in_steps = steps * layers ** (1 + with_layers) * directions ** (1 + with_directions) * step
    inputs = features + (layers - 1) * units * directions
    products = 2 * steps * batch * gates * units * directions * inputs / rate * numeric.exp(-before)
    return (in_steps + products) * numeric.exp(training * kept) + numeric.exp(layer) * layers * directions


class Blocks(NamedTuple):
    """An op with the rate of its arithmetic and its bytes."""

    work: Attention | Recurrence | Streaming
    flops_per_s: float
    nbytes: float


# The function of each family, and the parameters that a fit of it begins with.
FAMILIES: Mapping[str, tuple[Callable[..., Array], NDArray[np.float64]]] = {
    "attention": (attention_microseconds, ATTENTION_DEFAULTS),
    "recurrent": (recurrent_microseconds, RECURRENT_DEFAULTS),
    "stream": (stream_microseconds, STREAM_DEFAULTS),
}


@dataclass(frozen=True)
class BlockModel:
    """One of these functions with its parameters by group."""

    parameters: Mapping[str, NDArray[np.float64]]
    microseconds: Callable[..., Array]

    def octaves(self, blocks: Sequence[Blocks], bytes_per_s: float) -> NDArray[np.float64]:
        """The base-2 logarithm of seconds, of each."""
        given = np.array([closest_parameters(self.parameters, one.work.group) for one in blocks])
        sizes = np.array([one.work.sizes(one.flops_per_s, one.nbytes) for one in blocks])
        return np.log2(self.microseconds(given, sizes, bytes_per_s) * 1e-6)


def closest_parameters(parameters: Mapping[str, NDArray[np.float64]], group: str) -> NDArray[np.float64]:
    """The parameters of a group; for one that was not measured, the medians over the most similar groups: with the same
    first word (a class of ops, a library), the same second one (an op), and the most others in common."""
    if group in parameters:
        return parameters[group]
    words = group.split(" ")

    def likeness(other: str) -> tuple[bool, bool, int]:
        theirs = other.split(" ")
        return theirs[0] == words[0], theirs[1:2] == words[1:2], len({*words} & {*theirs})

    most = max(map(likeness, parameters))
    found: NDArray[np.float64] = np.median([parameters[one] for one in parameters if likeness(one) == most], axis=0)
    return found
