"""Published times of bf16 kernels: matrix products (`F.linear`) and attention, by NVIDIA's aiconfigurator.

Apache-2.0, https://github.com/ai-dynamo/aiconfigurator, commit 095f58a5; here in a compact form made by
tools/kernels/collect.py: products on their grid of (m, n, k), attention as rows; logarithms of seconds in 16 bits.
They were timed in CUDA graphs that repeat one kernel, so small operands sit in the cache.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache, lru_cache
from math import exp2, log2

import numpy as np
from numpy.typing import NDArray

from torchgauge.predict.coordinates import Place
from torchgauge.predict.kernel_tables import FOLDER, Floats, interpolate

UNIT = 1024.0  # steps of an octave
MISSING = -(1 << 15)


@cache
def _tables() -> dict[str, NDArray[np.int16]]:
    path = FOLDER / "published.npz"
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def published_seconds(device: str, place: Place) -> float | None:
    """None where the tables have no such kernel."""
    if place.family == "matmul" and place.kind.startswith("plain half"):
        return linear_seconds(device, tuple(map(log2, place.sizes)))
    if place.family == "attention" and place.kind in ("cudnn_attention half", "flash_attention half"):
        heads, length, read, width, is_causal, grouped = place.sizes
        which = "decode" if length == 1 else "prefill" if is_causal else "encoder"
        sizes = (heads, read if which == "decode" else length, width, grouped)
        return attention_seconds(device, which, tuple(map(log2, sizes)))
    return None


@lru_cache(maxsize=1 << 14)  # of the H200's tables, to which every other device is compared
def linear_seconds(device: str, at: tuple[float, ...]) -> float | None:
    """(m, n, k) as base-2 logarithms; between the levels of the grid, on none of its outsides."""
    grid = _tables().get(f"{device}.linear")
    if grid is None:
        return None
    corners: list[tuple[int, float]] = []
    for logs, value in zip(_levels(device), at, strict=True):
        if not logs[0] - 0.01 <= value <= logs[-1] + 1:
            return None
        upper = min(max(bisect_left(logs, value), 1), len(logs) - 1)
        corners.append((upper - 1, (value - logs[upper - 1]) / (logs[upper] - logs[upper - 1])))
    total = weight = 0.0
    for number in range(8):
        place, share = [], 1.0
        for position, (lower, part) in enumerate(corners):
            is_upper = number >> position & 1
            place.append(lower + is_upper)
            share *= part if is_upper else 1 - part
        value = int(grid[tuple(place)])
        if value == MISSING:
            return None
        total += share * value
        weight += share
    return exp2(total / weight / UNIT)


@cache
def _levels(device: str) -> list[list[float]]:
    """The axes m, n and k of the grid of products, as base-2 logarithms."""
    tables = _tables()
    levels = (tables.get(f"{device}.levels.{axis}", tables[f"levels.{axis}"]) for axis in "mnk")
    return [np.log2(sizes.astype(np.float64)).tolist() for sizes in levels]


@lru_cache(maxsize=1 << 14)
def attention_seconds(device: str, which: str, at: tuple[float, ...]) -> float | None:
    """(batch × heads, length, head size, heads per key head) as base-2 logarithms."""
    rows = _rows(device, which)
    if rows is None:
        return None
    value, distance = interpolate(*rows, np.array(at, np.float32))
    return exp2(value) if distance < 1.5 else None


@cache
def _rows(device: str, which: str) -> tuple[Floats, Floats] | None:
    found = _tables().get(f"{device}.{which}")
    if found is None:
        return None
    return found[:, :-1].astype(np.float32) / UNIT, found[:, -1].astype(np.float32) / UNIT
