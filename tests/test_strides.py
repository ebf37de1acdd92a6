"""The strides of contiguous tensors, and what counts as contiguous, as torch has them."""

from __future__ import annotations

import pytest
import torch

from torchgauge.strides import contiguous_stride, is_contiguous

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
