"""FP4 (E2M1), two values to a byte, the lower half first: MXFP4 with a power of two per 32 values, NVFP4 with an E4M3
scale per 16 and one scale per tensor.

OCP Microscaling Formats (MX) 1.0; NVFP4 as ModelOpt (`weight_scale_2` multiplies) and compressed-tensors
(`weight_global_scale` divides) store it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint.index import Entry
from torchgauge.weights.packings.packing import (
    E2M1,
    E4M3,
    E8M0,
    Block,
    Names,
    Packing,
    Read,
    is_readable,
    layout,
    nibbles,
    numbers,
    row_steps,
    sibling,
    stored,
    table,
)

_BITS = 4


@layout("mxfp4")
def mxfp4(entry: Entry, names: Names, read: Read) -> Packing | None:
    """As gpt-oss has it: blocks of 16 bytes in a last dimension of their own."""
    scales = sibling(names, entry, "_blocks", "_scales")
    if not is_readable(entry, "uint8") or scales is None or not is_readable(scales, "uint8"):
        return None
    if len(entry.spec.shape) < 2 or scales.spec.shape != entry.spec.shape[:-1]:
        return None
    *outer, groups, width = entry.spec.shape
    values, powers = table(E2M1), table(E8M0)

    def blocks() -> Iterator[Block]:
        for start, stop in row_steps(scales.elements, 2 * width):
            codes = nibbles(stored(entry, read, start * width, stop * width).reshape(-1, width))
            scale = powers[stored(scales, read, start, stop)]
            yield Block((values[codes] * scale[:, None]).ravel(), codes.ravel())

    return Packing("mxfp4", _BITS, (*outer, groups * width * 2), blocks)


@layout("fp4 with scales")
def fp4(entry: Entry, names: Names, read: Read) -> Packing | None:
    own = "weight_packed" if entry.name.endswith("weight_packed") else "weight"
    scales = sibling(names, entry, own, "weight_scale")
    if not is_readable(entry, "uint8") or scales is None or not is_readable(scales) or len(entry.spec.shape) != 2:
        return None
    rows, width = entry.spec.shape
    if len(scales.spec.shape) != 2 or scales.spec.shape[0] != rows or not scales.spec.shape[1]:
        return None
    groups = scales.spec.shape[1]
    whole = _whole(entry, own, names, read)
    if 2 * width % groups or (whole is None and scales.spec.dtype not in ("uint8", E8M0)):
        return None
    values = table(E2M1)

    def blocks() -> Iterator[Block]:
        for start, stop in row_steps(rows, 2 * width):
            codes = nibbles(stored(entry, read, start * width, stop * width).reshape(-1, width))
            scale = _scale(scales, read, start * groups, stop * groups, is_power=whole is None)
            each = (scale if whole is None else scale * whole).reshape(-1, groups).repeat(2 * width // groups, axis=1)
            yield Block((values[codes] * each).ravel(), codes.ravel())

    return Packing("mxfp4" if whole is None else "nvfp4", _BITS, (rows, 2 * width), blocks)


def _whole(entry: Entry, own: str, names: Names, read: Read) -> np.float32 | None:
    """The scale of the whole tensor; None where there is none."""
    factor = sibling(names, entry, own, "weight_scale_2")
    if factor is not None and factor.elements == 1:
        return np.float32(numbers(factor, read)[0])
    divisor = sibling(names, entry, own, "weight_global_scale")
    if divisor is None or divisor.elements != 1:
        return None
    found = numbers(divisor, read)[0]
    return np.float32(1 / found) if found else None


def _scale(scales: Entry, read: Read, start: int, stop: int, *, is_power: bool) -> NDArray[np.float32]:
    """Bytes without a type are powers of two in MXFP4 and E4M3 in NVFP4."""
    if scales.spec.dtype == "uint8":
        return table(E8M0 if is_power else E4M3)[stored(scales, read, start, stop)]
    return numbers(scales, read, start, stop)
