"""compressed-tensors, "pack-quantized": 2, 4 or 8-bit codes packed into words along the inputs, lowest bits first.

A code is the signed value plus half the range; `weight_shape` is the shape before packing. Zero points, if any, are
packed the same way along the outputs, and `weight_g_idx` is the group of each input.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint import Entry
from torchgauge.weights.packings.packing import (
    Block,
    Packing,
    ReadBytes,
    Tensors,
    is_readable,
    layout,
    read_elements,
    read_float32,
    row_steps,
    sibling,
    unpack_words,
)

_BITS = (4, 8, 2)


@layout("compressed-tensors")
def compressed(entry: Entry, tensors: Tensors, read: ReadBytes) -> Packing | None:
    scales = sibling(tensors, entry, "weight_packed", "weight_scale")
    if scales is None or not is_readable(entry, "int32") or not is_readable(scales) or len(entry.spec.shape) != 2:
        return None
    rows, words = entry.spec.shape
    # The number of columns before packing; assumes 4 bits if the file does not store the shape.
    shape = sibling(tensors, entry, "weight_packed", "weight_shape")
    if shape is not None and shape.elements == 2 and shape.spec.dtype in ("int32", "int64"):
        columns = int(read_elements(shape, read)[1])
    else:
        columns = entry.spec.shape[1] * 8
    bits = next((bits for bits in _BITS if -(-columns * bits // 32) == words), None)
    if bits is None or not rows or scales.elements % rows:
        return None
    scale = read_float32(scales, read).reshape(rows, -1)
    order, count = sibling(tensors, entry, "weight_packed", "weight_g_idx"), scale.shape[1]
    groups: NDArray[np.int64] | None = None
    if order is not None and order.elements == columns:
        groups = read_elements(order, read).astype(np.int64)
        if groups.min(initial=0) < 0:
            groups = None  # −1 means that no order was set
        elif groups.max(initial=0) >= count:
            return None
    if groups is None:
        if columns % count:
            return None
        groups = np.arange(columns) // max(columns // count, 1)
    zero = _zero(sibling(tensors, entry, "weight_packed", "weight_zero_point"), bits, scale, read)

    def blocks() -> Iterator[Block]:
        for start, stop in row_steps(rows, columns):
            packed = read_elements(entry, read, start * words, stop * words).view(np.uint32).reshape(-1, words)
            codes = np.ascontiguousarray(unpack_words(np.ascontiguousarray(packed.T), bits).T)[:, :columns]
            level = codes - zero[start:stop][:, groups]
            yield Block((level * scale[start:stop][:, groups]).ravel(), codes.ravel())

    return Packing(f"compressed-tensors {bits} bit", bits, (rows, columns), blocks)


def _zero(entry: Entry | None, bits: int, scale: NDArray[np.float32], read: ReadBytes) -> NDArray[np.float32]:
    """The zero points as codes; half the range if quantization is symmetric."""
    middle = np.full(scale.shape, 1 << (bits - 1), np.float32)
    if entry is None or not is_readable(entry):
        return middle
    if entry.elements == scale.size and entry.spec.dtype == "int8":
        return middle + read_float32(entry, read).reshape(scale.shape)
    if entry.spec.dtype != "int32" or entry.elements != -(-scale.shape[0] * bits // 32) * scale.shape[1]:
        return middle
    codes = unpack_words(read_elements(entry, read).view(np.uint32).reshape(-1, scale.shape[1]), bits)
    return codes[: scale.shape[0]].astype(np.float32)
