"""Codes that are small numbers themselves, with scales: FP8 or INT8 with one scale per tensor, per row, or per block of
rows and columns; FP4 (E2M1), two values per byte, the lower half first, with one scale per group of a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint import Entry
from torchgauge.weights.packings.packing import (
    E2M1,
    E4M3,
    E8M0,
    Block,
    Packing,
    ReadBytes,
    Tensors,
    is_readable,
    layout,
    nibbles,
    read_elements,
    read_float32,
    row_steps,
    sibling,
    value_table,
)

_DTYPES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int8")
# DeepSeek's block size; the last block of a dimension may be smaller.
_DEEPSEEK_BLOCK = 128


class Grid(NamedTuple):
    """The scales of a matrix, one per block of `block_rows` × `block_columns`."""

    scales: NDArray[np.float32]
    block_rows: int
    block_columns: int

    def of(self, start: int, stop: int, columns: int) -> NDArray[np.float32]:
        """The scale of each value in these rows, or an array that broadcasts to it."""
        rows = self.scales[np.arange(start, stop) // self.block_rows]
        return rows if rows.shape[1] == 1 else rows.repeat(self.block_columns, axis=1)[:, :columns]


@layout("scaled")
def scaled(entry: Entry, tensors: Tensors, read: ReadBytes) -> Packing | None:
    """DeepSeek's `weight_scale_inv` is a factor like `weight_scale`. One-byte scales are powers of two (E8M0)."""
    scale = sibling(tensors, entry, "weight", "weight_scale") or sibling(tensors, entry, "weight", "weight_scale_inv")
    if scale is None or not is_readable(entry, *_DTYPES) or not entry.spec.shape:
        return None
    if entry.spec.dtype == "int8" and scale.spec.dtype in ("uint8", E8M0):
        return None  # may be two FP4 values per byte
    rows, columns = entry.spec.shape[0], entry.elements // max(entry.spec.shape[0], 1)
    grid = grid_of(scale, rows, columns, read)
    if grid is None or (len(entry.spec.shape) > 2 and grid.scales.shape[1] > 1):
        return None
    zero, points = None, sibling(tensors, entry, "weight", "weight_zero_point")
    if points is not None and points.elements == grid.scales.size and is_readable(points):
        zero = grid._replace(scales=read_float32(points, read).reshape(grid.scales.shape))
    values = value_table(entry.spec.dtype)

    def blocks() -> Iterator[Block]:
        for start, stop in row_steps(rows, columns):
            codes = read_elements(entry, read, start * columns, stop * columns).view(np.uint8).reshape(-1, columns)
            level = values[codes] if zero is None else values[codes] - zero.of(start, stop, columns)
            yield Block((level * grid.of(start, stop, columns)).ravel(), codes.ravel())

    return Packing(f"{entry.spec.dtype} with scales", 8, entry.spec.shape, blocks)


def grid_of(scale: Entry, rows: int, columns: int, read: ReadBytes) -> Grid | None:
    """None if the scales do not divide the matrix into blocks."""
    shape = (1, 1) if scale.elements == 1 else (*scale.spec.shape, 1)[:2]
    if len(scale.spec.shape) > 2 or not is_readable(scale) or 0 in shape:
        return None
    sizes = _block_size(rows, shape[0]), _block_size(columns, shape[1])
    if sizes[0] is None or sizes[1] is None:
        return None
    is_power_of_two = scale.spec.dtype == "uint8"
    scales = value_table(E8M0)[read_elements(scale, read)] if is_power_of_two else read_float32(scale, read)
    return Grid(scales.reshape(shape), sizes[0], sizes[1])


def _block_size(size: int, scales: int) -> int | None:
    if -(-size // _DEEPSEEK_BLOCK) == scales:
        return _DEEPSEEK_BLOCK
    return max(size // scales, 1) if size % scales == 0 else None


_FP4_BITS = 4


@layout("mxfp4")
def mxfp4(entry: Entry, tensors: Tensors, read: ReadBytes) -> Packing | None:
    """The layout of gpt-oss: blocks of 16 bytes in the last dimension."""
    scales = sibling(tensors, entry, "_blocks", "_scales")
    if not is_readable(entry, "uint8") or scales is None or not is_readable(scales, "uint8"):
        return None
    if len(entry.spec.shape) < 2 or scales.spec.shape != entry.spec.shape[:-1]:
        return None
    *outer, groups, width = entry.spec.shape
    values, powers = value_table(E2M1), value_table(E8M0)

    def blocks() -> Iterator[Block]:
        for start, stop in row_steps(scales.elements, 2 * width):
            codes = nibbles(read_elements(entry, read, start * width, stop * width).reshape(-1, width))
            scale = powers[read_elements(scales, read, start, stop)]
            yield Block((values[codes] * scale[:, None]).ravel(), codes.ravel())

    return Packing("mxfp4", _FP4_BITS, (*outer, groups * width * 2), blocks)


@layout("fp4 with scales")
def fp4(entry: Entry, tensors: Tensors, read: ReadBytes) -> Packing | None:
    """MXFP4 with a power of two per 32 values (OCP Microscaling Formats 1.0), or NVFP4 with an E4M3 scale per 16 values
    and one scale per tensor, as ModelOpt and compressed-tensors store it."""
    own = "weight_packed" if entry.name.endswith("weight_packed") else "weight"
    scales = sibling(tensors, entry, own, "weight_scale")
    if not is_readable(entry, "uint8") or scales is None or not is_readable(scales) or len(entry.spec.shape) != 2:
        return None
    rows, width = entry.spec.shape
    if len(scales.spec.shape) != 2 or scales.spec.shape[0] != rows or not scales.spec.shape[1]:
        return None
    groups = scales.spec.shape[1]
    # One scale for the whole tensor: a factor, or in compressed-tensors a divisor.
    tensor_scale: np.float32 | None = None
    factor, divisor = (sibling(tensors, entry, own, f"weight_{part}") for part in ("scale_2", "global_scale"))
    if factor is not None and factor.elements == 1:
        tensor_scale = np.float32(read_float32(factor, read)[0])
    elif divisor is not None and divisor.elements == 1 and (value := read_float32(divisor, read)[0]):
        tensor_scale = np.float32(1 / value)
    if 2 * width % groups or (tensor_scale is None and scales.spec.dtype not in ("uint8", E8M0)):
        return None
    values = value_table(E2M1)

    def blocks() -> Iterator[Block]:
        for start, stop in row_steps(rows, 2 * width):
            codes = nibbles(read_elements(entry, read, start * width, stop * width).reshape(-1, width))
            if scales.spec.dtype == "uint8":
                # Powers of two (E8M0) in MXFP4, E4M3 in NVFP4.
                kind = E8M0 if tensor_scale is None else E4M3
                scale = value_table(kind)[read_elements(scales, read, start * groups, stop * groups)]
            else:
                scale = read_float32(scales, read, start * groups, stop * groups)
            scale = scale if tensor_scale is None else scale * tensor_scale
            each = scale.reshape(-1, groups).repeat(2 * width // groups, axis=1)
            yield Block((values[codes] * each).ravel(), codes.ravel())

    return Packing("mxfp4" if tensor_scale is None else "nvfp4", _FP4_BITS, (rows, 2 * width), blocks)
