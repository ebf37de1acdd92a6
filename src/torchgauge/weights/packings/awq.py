"""AWQ: 4-bit codes packed along the outputs, eight per word in the order 0 2 4 6 1 3 5 7 of its GPU kernel.

Lin et al. 2023; the "gemm" layout of AutoAWQ. One scale and zero point per group of inputs and per output.
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
)

_BITS, _PER_WORD = 4, 8
# The position of columns 0 … 7 within a word.
_POSITIONS = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.uint32)


@layout("awq")
def awq(entry: Entry, tensors: Tensors, read: ReadBytes) -> Packing | None:
    zeros, scales = (sibling(tensors, entry, ".qweight", f".{part}") for part in ("qzeros", "scales"))
    if zeros is None or scales is None or entry.spec.dtype != "int32" or zeros.spec.dtype != "int32":
        return None
    if not all(is_readable(part) and len(part.spec.shape) == 2 for part in (entry, zeros, scales)):
        return None
    (inputs, words), (groups, outputs) = entry.spec.shape, scales.spec.shape
    if zeros.spec.shape != (groups, words) or outputs != words * _PER_WORD or not groups or inputs % groups:
        return None
    scale = read_float32(scales, read).reshape(groups, outputs)
    zero = _codes(read_elements(zeros, read).reshape(groups, words)).astype(np.float32)
    size = inputs // groups

    def blocks() -> Iterator[Block]:
        for start, stop in row_steps(inputs, outputs):
            codes = _codes(read_elements(entry, read, start * words, stop * words).reshape(-1, words))
            group = np.arange(start, stop) // size
            yield Block(((codes - zero[group]) * scale[group]).ravel(), codes.ravel())

    return Packing("awq 4 bit", _BITS, (inputs, outputs), blocks, is_transposed=True)


def _codes(words: NDArray[np.integer]) -> NDArray[np.uint8]:
    shifted = words.view(np.uint32)[..., None] >> (_POSITIONS * np.uint32(_BITS))
    return (shifted & np.uint32(15)).astype(np.uint8).reshape(len(words), -1)
