"""Matrices quantized by hand, each layout from its definition, as the entries and bytes a file would give."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint import Entry, unpack
from torchgauge.facts import TensorSpec

NF4 = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0],
    np.float32,
)  # fmt: skip
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class File:
    """Tensors in memory, read as from a file."""

    def __init__(
        self, tensors: dict[str, NDArray[Any]], dtypes: dict[str, str] | None = None, folder: str = ""
    ) -> None:
        self._content = {name: np.ascontiguousarray(array).tobytes() for name, array in tensors.items()}
        named = dtypes or {}
        entries = [
            Entry(
                name,
                TensorSpec(array.shape, named.get(name, str(array.dtype))),
                f"{folder}/m.safetensors",
                0,
                array.nbytes,
            )
            for name, array in tensors.items()
        ]
        self.entries = {entry.name: entry for entry in unpack(entries, lambda entry: self._content[entry.name])}
        self.largest_read = 0

    def read(self, entry: Entry, start: int, count: int) -> bytes:
        self.largest_read = max(self.largest_read, count)
        found = self._content[entry.name][start : start + count]
        assert len(found) == count
        return found


def pack_words(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Codes along the first dimension as one stream of bits, the lowest first, in words of 32."""
    count, columns = codes.shape
    stream = ((codes[:, None, :].astype(np.uint64) >> np.arange(bits, dtype=np.uint64)[:, None]) & 1).reshape(
        -1, columns
    )
    assert count * bits % 32 == 0
    words = stream.reshape(-1, 32, columns) << np.arange(32, dtype=np.uint64)[:, None]
    return words.sum(axis=1).astype(np.uint32).view(np.int32)


def pack_awq(codes: NDArray[Any]) -> NDArray[np.int32]:
    grouped = codes.reshape(len(codes), -1, 8).astype(np.uint32)
    words = sum(grouped[:, :, column] << np.uint32(4 * place) for place, column in enumerate(AWQ_ORDER))
    return np.asarray(words, np.uint32).view(np.int32)


def pack_bytes(codes: NDArray[Any], *, high_first: bool) -> NDArray[np.uint8]:
    pairs = codes.reshape(-1, 2).astype(np.uint8)
    first, second = pairs[:, 0], pairs[:, 1]
    return np.asarray((first << 4 | second) if high_first else (second << 4 | first), np.uint8)


def json_bytes(value: Any) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def bitsandbytes(
    shape: tuple[int, ...], *, nested: bool, blocksize: int = 64, seed: int = 0
) -> tuple[File, NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    count = prod(shape)
    codes = random.integers(0, 16, count + count % 2)
    blocks = -(-count // blocksize)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": blocksize, "shape": list(shape), "dtype": "bfloat16"}
    tensors: dict[str, NDArray[Any]] = {"w": pack_bytes(codes, high_first=True)[:, None], "w.quant_map": NF4}
    if nested:
        levels = np.sort(random.uniform(-1, 1, 256)).astype(np.float32)
        fine = random.integers(0, 256, blocks).astype(np.uint8)
        coarse = random.uniform(0.1, 0.2, -(-blocks // 256)).astype(np.float32)
        offset = np.float32(0.25)
        absmax = levels[fine] * coarse[np.arange(blocks) // 256] + offset
        state |= {"nested_blocksize": 256, "nested_offset": float(offset), "nested_dtype": "float32"}
        tensors |= {"w.absmax": fine, "w.nested_absmax": coarse, "w.nested_quant_map": levels}
    else:
        absmax = random.uniform(0.5, 2, blocks).astype(np.float32)
        tensors["w.absmax"] = absmax
    tensors["w.quant_state.bitsandbytes__nf4"] = json_bytes(state)
    return File(tensors), NF4[codes[:count]] * absmax[np.arange(count) // blocksize]


def gptq(
    bits: int, *, order: bool = False, folder: str = "", true_zeros: bool = False, seed: int = 0
) -> tuple[File, NDArray[np.float32]]:
    inputs, outputs, size = 96, 64, 32
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << bits, (inputs, outputs))
    zeros = random.integers(1, 1 << bits, (inputs // size, outputs))
    scales = random.uniform(0.01, 0.02, (inputs // size, outputs)).astype(np.float16)
    group = random.permutation(np.arange(inputs) // size) if order else np.arange(inputs) // size
    tensors: dict[str, NDArray[Any]] = {
        "q.qweight": pack_words(codes, bits),
        "q.qzeros": np.ascontiguousarray(pack_words((zeros if true_zeros else zeros - 1).T, bits).T),
        "q.scales": scales,
    }
    if order:
        tensors["q.g_idx"] = group.astype(np.int32)
    values = scales[group].astype(np.float32) * (codes - zeros[group]).astype(np.float32)
    return File(tensors, folder=folder), values.ravel()
