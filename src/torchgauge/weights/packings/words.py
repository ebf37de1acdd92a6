"""Integer codes packed into 32-bit words: AWQ, GPTQ, compressed-tensors."""

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

_AWQ_BITS, _AWQ_PER_WORD = 4, 8
# The position of columns 0 … 7 within a word: the order of its GPU kernel is 0 2 4 6 1 3 5 7.
_AWQ_POSITIONS = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.uint32)


@layout("awq")
def awq(entry: Entry, tensors: Tensors, read: ReadBytes) -> Packing | None:
    """4-bit codes packed along the outputs, eight per word; a scale and zero point per group of inputs and per output.
    Lin et al. 2023; the "gemm" layout of AutoAWQ."""
    zeros, scales = (sibling(tensors, entry, ".qweight", f".{part}") for part in ("qzeros", "scales"))
    if zeros is None or scales is None or entry.spec.dtype != "int32" or zeros.spec.dtype != "int32":
        return None
    if not all(is_readable(part) and len(part.spec.shape) == 2 for part in (entry, zeros, scales)):
        return None
    (inputs, words), (groups, outputs) = entry.spec.shape, scales.spec.shape
    if zeros.spec.shape != (groups, words) or outputs != words * _AWQ_PER_WORD or not groups or inputs % groups:
        return None
    scale = read_float32(scales, read).reshape(groups, outputs)
    zero = _awq_codes(read_elements(zeros, read).reshape(groups, words)).astype(np.float32)
    size = inputs // groups

    def blocks() -> Iterator[Block]:
        for start, stop in row_steps(inputs, outputs):
            codes = _awq_codes(read_elements(entry, read, start * words, stop * words).reshape(-1, words))
            group = np.arange(start, stop) // size
            yield Block(((codes - zero[group]) * scale[group]).ravel(), codes.ravel())

    return Packing("awq 4 bit", _AWQ_BITS, (inputs, outputs), blocks, is_transposed=True)


def _awq_codes(words: NDArray[np.integer]) -> NDArray[np.uint8]:
    shifted = words.view(np.uint32)[..., None] >> (_AWQ_POSITIONS * np.uint32(_AWQ_BITS))
    return (shifted & np.uint32(15)).astype(np.uint8).reshape(len(words), -1)


_GPTQ_BITS = (4, 8, 2, 3)
_CONFIGURATIONS = ("quantize_config.json", "config.json")
_MAX_CONFIGURATION_BYTES = 1 << 20


class _GptqParts(NamedTuple):
    bits: int
    inputs: int
    outputs: int
    groups: NDArray[np.int64]
    scales: Entry
    zeros: Entry


@layout("gptq")
def gptq(entry: Entry, tensors: Tensors, read: ReadBytes) -> Packing | None:
    """2, 3, 4 or 8-bit codes packed along the inputs; one scale and zero point per group of inputs and per output.
    Frantar et al. 2022; the layout of AutoGPTQ."""
    parts = _gptq_parts(entry, tensors, read)
    if parts is None:
        return None
    scale = read_float32(parts.scales, read).reshape(-1, parts.outputs)
    packed = read_elements(parts.zeros, read).view(np.uint32).reshape(len(scale), -1)
    zero = unpack_words(np.ascontiguousarray(packed.T), parts.bits).T[:, : parts.outputs]
    if not _is_gptq_v2(entry):
        # Zero points are stored minus 1, which wraps around: with 4 bits, a stored 15 means 0.
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


def _gptq_parts(entry: Entry, tensors: Tensors, read: ReadBytes) -> _GptqParts | None:
    zeros, scales, order = (sibling(tensors, entry, ".qweight", f".{part}") for part in ("qzeros", "scales", "g_idx"))
    if zeros is None or scales is None or not is_readable(entry, "int32") or not is_readable(zeros, "int32"):
        return None
    if not len(entry.spec.shape) == len(zeros.spec.shape) == len(scales.spec.shape) == 2:
        return None
    groups, outputs = scales.spec.shape
    bits = next((bits for bits in _GPTQ_BITS if -(-outputs * bits // 32) == zeros.spec.shape[1]), None)
    fits = bits and entry.spec.shape[1] == outputs and zeros.spec.shape[0] == groups
    if not bits or not fits or entry.spec.shape[0] % unit_words(bits) or zeros.spec.shape[1] % unit_words(bits):
        return None
    inputs = entry.spec.shape[0] * 32 // bits
    if order is None or not order.elements:
        # Consecutive groups if the file stores no order.
        return _GptqParts(bits, inputs, outputs, np.arange(inputs) // -(-inputs // max(groups, 1)), scales, zeros)
    group_of_input: NDArray[np.int64] = read_elements(order, read).astype(np.int64)
    is_complete = 0 <= inputs - len(group_of_input) < 32
    if not is_complete or group_of_input.min() < 0 or group_of_input.max() >= groups:
        return None
    return _GptqParts(bits, len(group_of_input), outputs, group_of_input, scales, zeros)


def _is_gptq_v2(entry: Entry) -> bool:
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


_COMPRESSED_BITS = (4, 8, 2)


@layout("compressed-tensors")
def compressed(entry: Entry, tensors: Tensors, read: ReadBytes) -> Packing | None:
    """compressed-tensors, "pack-quantized": 2, 4 or 8-bit codes packed along the inputs, lowest bits first.

    A code is the signed value plus half the range; `weight_shape` is the shape before packing. Zero points, if any, are
    packed the same way along the outputs, and `weight_g_idx` is the group of each input.
    """
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
    bits = next((bits for bits in _COMPRESSED_BITS if -(-columns * bits // 32) == words), None)
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
    # The zero points as codes; half the range if quantization is symmetric.
    zero = np.full(scale.shape, 1 << (bits - 1), np.float32)
    points = sibling(tensors, entry, "weight_packed", "weight_zero_point")
    if points is not None and is_readable(points, "int8") and points.elements == scale.size:
        zero += read_float32(points, read).reshape(scale.shape)
    elif points is not None and is_readable(points, "int32") and points.elements == -(-rows * bits // 32) * count:
        zero = unpack_words(read_elements(points, read).view(np.uint32).reshape(-1, count), bits)[:rows].astype(
            np.float32
        )

    def blocks() -> Iterator[Block]:
        for start, stop in row_steps(rows, columns):
            packed = read_elements(entry, read, start * words, stop * words).view(np.uint32).reshape(-1, words)
            codes = np.ascontiguousarray(unpack_words(np.ascontiguousarray(packed.T), bits).T)[:, :columns]
            level = codes - zero[start:stop][:, groups]
            yield Block((level * scale[start:stop][:, groups]).ravel(), codes.ravel())

    return Packing(f"compressed-tensors {bits} bit", bits, (rows, columns), blocks)
