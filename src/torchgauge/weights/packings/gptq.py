"""GPTQ: codes of 2, 3, 4 or 8 bits packed along the inputs, a scale and a zero point per group of inputs and output.

Frantar et al. 2022; layout of AutoGPTQ. Its zero points are stored less 1, except in files that say `gptq_v2` in their
configuration.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint.index import Entry
from torchgauge.weights.packings.packing import (
    Block,
    Names,
    Packing,
    Read,
    is_readable,
    layout,
    numbers,
    row_steps,
    sibling,
    stored,
    unit_words,
    unpack_words,
)

_BITS = (4, 8, 2, 3)
_CONFIGURATIONS = ("quantize_config.json", "config.json")
_CONFIGURATION_BYTES = 1 << 20


class _Parts(NamedTuple):
    bits: int
    inputs: int
    outputs: int
    groups: NDArray[np.int64]
    scales: Entry
    zeros: Entry


@layout("gptq")
def gptq(entry: Entry, names: Names, read: Read) -> Packing | None:
    parts = _parts(entry, names, read)
    if parts is None:
        return None
    scale = numbers(parts.scales, read).reshape(-1, parts.outputs)
    packed = stored(parts.zeros, read).view(np.uint32).reshape(len(scale), -1)
    zero = unpack_words(np.ascontiguousarray(packed.T), parts.bits).T[:, : parts.outputs]
    if not _stores_true_zeros(entry):
        # It wraps: a stored 15 of 4 bits stands for 0.
        zero = (zero + np.uint8(1)) & np.uint8((1 << parts.bits) - 1)
    shift = zero.astype(np.float32)

    def blocks() -> Iterator[Block]:
        per_word = 32 // parts.bits if parts.bits != 3 else 32 / 3
        for start, stop in row_steps(entry.spec.shape[0], round(parts.outputs * per_word), unit_words(parts.bits)):
            words = stored(entry, read, start * parts.outputs, stop * parts.outputs).view(np.uint32)
            codes = unpack_words(words.reshape(-1, parts.outputs), parts.bits)
            first = start * 32 // parts.bits
            codes = codes[: parts.inputs - first]
            group = parts.groups[first : first + len(codes)]
            yield Block((scale[group] * (codes - shift[group])).ravel(), codes.ravel())

    return Packing(f"gptq {parts.bits} bit", parts.bits, (parts.inputs, parts.outputs), blocks, is_transposed=True)


def _parts(entry: Entry, names: Names, read: Read) -> _Parts | None:
    zeros, scales, order = (sibling(names, entry, ".qweight", f".{part}") for part in ("qzeros", "scales", "g_idx"))
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
    found = _groups(order, inputs, groups, read)
    return None if found is None else _Parts(bits, len(found), outputs, found, scales, zeros)


def _groups(order: Entry | None, inputs: int, groups: int, read: Read) -> NDArray[np.int64] | None:
    """The group of each input; one after the other where the file does not say."""
    if order is None or not order.elements:
        return np.arange(inputs) // -(-inputs // max(groups, 1))
    found: NDArray[np.int64] = stored(order, read).astype(np.int64)
    fits = 0 <= inputs - len(found) < 32 and found.min() >= 0 and found.max() < groups
    return found if fits else None


def _stores_true_zeros(entry: Entry) -> bool:
    folder = os.path.dirname(entry.file)
    found = (_configuration(os.path.join(folder, name)) for name in _CONFIGURATIONS)
    return any(_format(configuration) == "gptq_v2" for configuration in found)


def _format(configuration: Any) -> Any:
    if not isinstance(configuration, dict):
        return None
    inner = configuration.get("quantization_config")
    return (inner if isinstance(inner, dict) else configuration).get("checkpoint_format")


def _configuration(path: str) -> Any:
    try:
        with open(path, "rb") as stream:
            return json.loads(stream.read(_CONFIGURATION_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
