"""The strides of contiguous tensors, and what counts as contiguous, as torch has them."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch

from torchgauge.facts import TensorSpec, contiguous_stride, is_contiguous, windowed_elements

SHAPES = [(), (3,), (2, 3, 4), (2, 1, 4), (1, 1), (2, 0, 3), (0,)]


@pytest.mark.parametrize("shape", SHAPES)
def test_contiguous_strides_are_those_of_torch(shape: tuple[int, ...]) -> None:
    stride = contiguous_stride(shape)
    assert stride == torch.empty(shape).stride()
    assert is_contiguous(shape, stride)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(2, 3).t(),
        torch.empty(4, 6)[:, ::2],
        torch.empty(1, 3).expand(2, 3),
        torch.empty(2, 1, 3).transpose(0, 1),
        torch.empty(2, 0, 3).permute(2, 1, 0),
        torch.empty_strided((3, 1), (1, 7)),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)} by {tensor.stride()}",
)
def test_a_tensor_is_contiguous_where_torch_says_so(tensor: torch.Tensor) -> None:
    assert is_contiguous(tuple(tensor.shape), tensor.stride()) is tensor.is_contiguous()


def distinct_elements(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    return TensorSpec(shape, "int8", stride).distinct_bytes


def places(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    return len({sum(i * s for i, s in zip(at, stride, strict=True)) for at in product(*map(range, shape))})


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(3, 1).expand(3, 1000),
        torch.empty(40).unfold(0, 8, 3),
        torch.empty(40).unfold(0, 3, 8),
        torch.empty(2, 9, 12).unfold(1, 3, 1).unfold(2, 4, 2),
        torch.empty(6, 8)[::2, ::2].t(),
        torch.empty(30).as_strided((10, 3), (1, 2)),
        torch.empty(0, 3).expand(0, 3),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)} by {tensor.stride()}",
)
def test_distinct_elements_of_expanded_and_overlapping_views(tensor: torch.Tensor) -> None:
    assert distinct_elements(tuple(tensor.shape), tensor.stride()) == places(tuple(tensor.shape), tensor.stride())


def test_distinct_elements_are_never_fewer_than_there_are() -> None:
    chance = random.Random(0)
    for _ in range(500):
        rank = chance.randint(1, 4)
        shape = tuple(chance.randint(1, 4) for _ in range(rank))
        stride = tuple(chance.randint(0, 12) for _ in range(rank))
        assert places(shape, stride) <= distinct_elements(shape, stride) <= max(torch.Size(shape).numel(), 1)


def test_windows_touch_what_their_taps_name() -> None:
    chance = random.Random(1)
    for _ in range(500):
        size, kernel, step, dilation, padding = (
            chance.randint(*ends) for ends in ((1, 12), (1, 4), (1, 5), (1, 3), (0, 3))
        )
        windows = max((size + 2 * padding - dilation * (kernel - 1) - 1) // step + 1, 0)
        taps = {i * step + j * dilation - padding for i in range(windows) for j in range(kernel)}
        touched = windowed_elements(size, windows, kernel, step, dilation, padding)
        assert touched == len(taps & set(range(size)))
