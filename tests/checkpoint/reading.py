"""Reads a tensor where the index says it is, with numpy alone, to compare it with what the real loader gives."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from torchgauge.checkpoint import Entry, Index

_KINDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def raw_items(entry: Entry) -> bytes:
    """The bytes of every element in the order of the tensor's indices."""
    assert entry.offset is not None
    item, shape = entry.spec.itemsize, entry.spec.shape
    stride = entry.spec.stride or _dense(shape)
    extent = 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    with open(entry.file, "rb") as stream:
        stream.seek(entry.offset)
        content = stream.read(extent * item)
    assert len(content) == extent * item
    cells = np.frombuffer(content, np.uint8).reshape(extent, item)
    view = np.lib.stride_tricks.as_strided(cells, (*shape, item), (*(step * item for step in stride), 1))
    return view.tobytes()


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[place + 1 :], dtype=np.int64)) for place in range(len(shape)))


def torch_bytes(tensor: torch.Tensor) -> bytes:
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(index: Index, expected: Mapping[str, torch.Tensor]) -> None:
    """Names, shapes, types, strides and every byte."""
    assert [entry.name for entry in index.entries] == list(expected)
    for entry in index.entries:
        tensor = expected[entry.name]
        assert entry.spec.shape == tuple(tensor.shape), entry.name
        assert f"torch.{entry.spec.dtype}" == str(tensor.dtype), entry.name
        if entry.spec.stride is not None:
            assert entry.spec.stride == tensor.stride(), entry.name
        else:
            assert tensor.is_contiguous(), entry.name
        assert raw_items(entry) == torch_bytes(tensor), entry.name
