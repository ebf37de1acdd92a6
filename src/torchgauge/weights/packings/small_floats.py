"""FP4 (E2M1), two values per byte, the lower half first: MXFP4 with a power of two per 32 values, NVFP4 with an E4M3
scale per 16 values and one scale per tensor.

OCP Microscaling Formats (MX) 1.0; NVFP4 as ModelOpt (`weight_scale_2` multiplies) and compressed-tensors
(`weight_global_scale` divides) store it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

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

_BITS = 4


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

    return Packing("mxfp4", _BITS, (*outer, groups * width * 2), blocks)


@layout("fp4 with scales")
def fp4(entry: Entry, tensors: Tensors, read: ReadBytes) -> Packing | None:
    own = "weight_packed" if entry.name.endswith("weight_packed") else "weight"
    scales = sibling(tensors, entry, own, "weight_scale")
    if not is_readable(entry, "uint8") or scales is None or not is_readable(scales) or len(entry.spec.shape) != 2:
        return None
    rows, width = entry.spec.shape
    if len(scales.spec.shape) != 2 or scales.spec.shape[0] != rows or not scales.spec.shape[1]:
        return None
    groups = scales.spec.shape[1]
    tensor_scale = _tensor_scale(entry, own, tensors, read)
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

    return Packing("mxfp4" if tensor_scale is None else "nvfp4", _BITS, (rows, 2 * width), blocks)


def _tensor_scale(entry: Entry, own: str, tensors: Tensors, read: ReadBytes) -> np.float32 | None:
    """The scale of the whole tensor, if there is one."""
    factor = sibling(tensors, entry, own, "weight_scale_2")
    if factor is not None and factor.elements == 1:
        return np.float32(read_float32(factor, read)[0])
    divisor = sibling(tensors, entry, own, "weight_global_scale")
    if divisor is None or divisor.elements != 1:
        return None
    value = read_float32(divisor, read)[0]
    return np.float32(1 / value) if value else None
