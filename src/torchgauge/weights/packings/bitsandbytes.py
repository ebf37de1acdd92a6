"""bitsandbytes: 4-bit codes with a lookup table (NF4, FP4) and one scale per block, or int8 with one scale per row.

Dettmers et al.: LLM.int8() (2022), QLoRA (2023). The scales of 4-bit blocks may be quantized too: 8-bit codes with a
table of 256 values, one scale per 256 of them and one offset for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint import Entry
from torchgauge.weights.packings.packing import (
    BLOCK_VALUES,
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
)

_KINDS = ("nf4", "fp4")
_LEVELS_8BIT = 127
_MAX_STATE_BYTES = 1 << 16
_MAX_BLOCK = 1 << 16


class _Scales(NamedTuple):
    """The scale of each block of values."""

    absmax: Entry
    table: NDArray[np.float32] | None
    coarse: NDArray[np.float32] | None
    per_coarse: int
    offset: np.float32

    def of(self, first: int, last: int, read: ReadBytes) -> NDArray[np.float32]:
        if self.table is None or self.coarse is None:
            return read_float32(self.absmax, read, first, last)
        fine = self.table[read_elements(self.absmax, read, first, last)]
        return fine * self.coarse[np.arange(first, last) // self.per_coarse] + self.offset


@layout("bitsandbytes 4 bit")
def four_bits(entry: Entry, tensors: Tensors, read: ReadBytes) -> Packing | None:
    parts = {part: tensors.get(f"{entry.name}.{part}") for part in ("absmax", "quant_map")}
    absmax, levels = parts["absmax"], parts["quant_map"]
    kind = next((kind for kind in _KINDS if f"{entry.name}.quant_state.bitsandbytes__{kind}" in tensors), None)
    if absmax is None or levels is None or levels.elements != 16 or kind is None:
        return None
    held = tensors[f"{entry.name}.quant_state.bitsandbytes__{kind}"]
    try:
        stated = json.loads(read(held, 0, min(held.nbytes, _MAX_STATE_BYTES)))
    except (ValueError, RecursionError):
        stated = {}
    state: Mapping[str, object] = stated if isinstance(stated, dict) else {}
    # The shape in the state, if it matches the number of bytes; otherwise one-dimensional.
    sizes, shape = state.get("shape"), (2 * entry.nbytes,)
    if isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes):
        shape = tuple(sizes) if (prod(sizes) + 1) // 2 == entry.nbytes else shape
    count, size = prod(shape), _positive(state.get("blocksize")) or 64
    scales = _scales(entry, absmax, state, tensors, read)
    if scales is None or absmax.elements != -(-count // size) or size > _MAX_BLOCK or size % 2:
        return None
    values = read_float32(levels, read)

    def blocks() -> Iterator[Block]:
        step = max(BLOCK_VALUES // size, 1) * size
        for start in range(0, count, step):
            stop = min(start + step, count)
            packed = np.frombuffer(read(entry, start // 2, (stop + 1) // 2 - start // 2), np.uint8)
            codes = nibbles(packed, high_first=True)[: stop - start]
            scale = scales.of(start // size, -(-stop // size), read).repeat(size)[: stop - start]
            yield Block(values[codes] * scale, codes)

    return Packing(f"bitsandbytes {kind}", 4, shape, blocks)


def _scales(
    entry: Entry, absmax: Entry, state: Mapping[str, object], tensors: Tensors, read: ReadBytes
) -> _Scales | None:
    coarse, table = (tensors.get(f"{entry.name}.nested_{part}") for part in ("absmax", "quant_map"))
    if coarse is None or table is None:
        return _Scales(absmax, None, None, 1, np.float32(0)) if is_readable(absmax, "float32") else None
    size, offset = _positive(state.get("nested_blocksize")) or 256, state.get("nested_offset")
    fits = table.elements == 256 and coarse.elements == -(-absmax.elements // size) and is_readable(absmax, "uint8")
    if not fits or not isinstance(offset, int | float):
        return None
    return _Scales(absmax, read_float32(table, read), read_float32(coarse, read), size, np.float32(offset))


def _positive(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


@layout("bitsandbytes 8 bit")
def eight_bits(entry: Entry, tensors: Tensors, read: ReadBytes) -> Packing | None:
    scales = sibling(tensors, entry, ".weight", ".SCB")
    order = sibling(tensors, entry, ".weight", ".weight_format")
    if scales is None or not is_readable(entry, "int8") or len(entry.spec.shape) != 2:
        return None
    rows, columns = entry.spec.shape
    if scales.elements != rows or (order is not None and read_elements(order, read).any()):
        return None  # only row-major order is known; the others belong to one kind of GPU
    largest = read_float32(scales, read)

    def blocks() -> Iterator[Block]:
        for start, stop in row_steps(rows, columns):
            codes = read_elements(entry, read, start * columns, stop * columns).reshape(-1, columns)
            scale = largest[start:stop, None] / np.float32(_LEVELS_8BIT)
            yield Block((codes * scale).ravel(), codes.view(np.uint8).ravel())

    return Packing("bitsandbytes int8", 8, (rows, columns), blocks)
