"""GPTQ: 2, 3, 4 or 8-bit codes packed along the inputs, one scale and zero point per group of inputs and per output.

Frantar et al. 2022; the layout of AutoGPTQ. Zero points are stored minus 1, unless the configuration says `gptq_v2`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import NamedTuple

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
    unit_words,
    unpack_words,
)

_BITS = (4, 8, 2, 3)
_CONFIGURATIONS = ("quantize_config.json", "config.json")
_MAX_CONFIGURATION_BYTES = 1 << 20


class _Parts(NamedTuple):
    bits: int
    inputs: int
    outputs: int
    groups: NDArray[np.int64]
    scales: Entry
    zeros: Entry


@layout("gptq")
def gptq(entry: Entry, tensors: Tensors, read: ReadBytes) -> Packing | None:
    parts = _parts(entry, tensors, read)
    if parts is None:
        return None
    scale = read_float32(parts.scales, read).reshape(-1, parts.outputs)
    packed = read_elements(parts.zeros, read).view(np.uint32).reshape(len(scale), -1)
    zero = unpack_words(np.ascontiguousarray(packed.T), parts.bits).T[:, : parts.outputs]
    if not _stores_true_zeros(entry):
        # Wraps around: with 4 bits, a stored 15 means 0.
        zero = (zero + np.uint8(1)) & np.uint8((1 << parts.bits) - 1)
    shift = zero.astype(np.float32)

    def blocks() -> Iterator[Block]:
        per_word = 32 // parts.bits if parts.bits != 3 else 32 / 3
        for start, stop in row_steps(entry.spec.shape[0], round(parts.outputs * per_word), unit_words(parts.bits)):
            words = read_elements(entry, read, start * parts.outputs, stop * parts.outputs).view(np.uint32)
            codes = unpack_words(words.reshape(-1, parts.outputs), parts.bits)
            first = start * 32 // parts.bits
            codes = codes[: parts.inputs - first]
            group = parts.groups[first : first + len(codes)]
            yield Block((scale[group] * (codes - shift[group])).ravel(), codes.ravel())

    return Packing(f"gptq {parts.bits} bit", parts.bits, (parts.inputs, parts.outputs), blocks, is_transposed=True)


def _parts(entry: Entry, tensors: Tensors, read: ReadBytes) -> _Parts | None:
    zeros, scales, order = (sibling(tensors, entry, ".qweight", f".{part}") for part in ("qzeros", "scales", "g_idx"))
    if zeros is None or scales is None or not is_readable(entry, "int32") or not is_readable(zeros, "int32"):
        return None
    if not len(entry.spec.shape) == len(zeros.spec.shape) == len(scales.spec.shape) == 2:
        return None
    groups, outputs = scales.spec.shape
    bits = next((bits for bits in _BITS if -(-outputs * bits // 32) == zeros.spec.shape[1]), None)
    fits = bits and entry.spec.shape[1] == outputs and zeros.spec.shape[0] == groups
    if not bits or not fits or entry.spec.shape[0] % unit_words(bits) or zeros.spec.shape[1] % unit_words(bits):
        return None
    inputs = entry.spec.shape[0] * 32 // bits
    if order is None or not order.elements:
        # Consecutive groups if the file stores no order.
        return _Parts(bits, inputs, outputs, np.arange(inputs) // -(-inputs // max(groups, 1)), scales, zeros)
    group_of_input: NDArray[np.int64] = read_elements(order, read).astype(np.int64)
    is_complete = 0 <= inputs - len(group_of_input) < 32
    if not is_complete or group_of_input.min() < 0 or group_of_input.max() >= groups:
        return None
    return _Parts(bits, len(group_of_input), outputs, group_of_input, scales, zeros)


def _stores_true_zeros(entry: Entry) -> bool:
    folder = os.path.dirname(entry.file)
    for name in _CONFIGURATIONS:
        try:
            with open(os.path.join(folder, name), "rb") as stream:
                configuration = json.loads(stream.read(_MAX_CONFIGURATION_BYTES))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(configuration, dict):
            inner = configuration.get("quantization_config")
            if (inner if isinstance(inner, dict) else configuration).get("checkpoint_format") == "gptq_v2":
                return True
    return False
