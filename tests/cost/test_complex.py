"""Flops and MACs are operations on real numbers, also of complex ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg

N = 12
X, Y = torch.randn(3, 4, dtype=torch.complex64), torch.randn(3, 4, dtype=torch.complex64)
REAL = torch.randn(3, 4)


class Computes(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> Tensor:
        return self.function(*given)


def totals(function: Callable[..., Tensor], *given: Tensor) -> Any:
    return tg.analyze(Computes(function), inputs=given, advice=False).totals


@pytest.mark.parametrize(
    ("function", "given", "flops"),
    [
        (torch.mul, (X, Y), 6 * N),
        (torch.mul, (X, REAL), 2 * N),
        (lambda x: x * x, (X,), 6 * N),
        (lambda x: x * 2.0, (X,), 2 * N),
        (lambda x: x * 2j, (X,), 6 * N),
        (torch.add, (X, Y), 2 * N),
        (torch.sub, (X, Y), 2 * N),
        (torch.div, (X, Y), 11 * N),
        (lambda x: x / 2.0, (X,), 2 * N),
        (torch.abs, (X,), 4 * N),
        (torch.neg, (X,), 2 * N),
        (torch.sum, (X,), 2 * N),
        (lambda x, y: torch.addcmul(x, x, y), (X, Y), 8 * N),
        (torch.polar, (REAL, REAL), 4 * N),
        (lambda x: torch.view_as_real(x) * 2, (X,), 2 * N),
        (torch.mul, (REAL, REAL), N),
    ],
)
def test_elementwise(function: Callable[..., Tensor], given: tuple[Tensor, ...], flops: int) -> None:
    assert totals(function, *given).flops == flops


@pytest.mark.parametrize(
    ("function", "given", "products"),
    [
        (torch.matmul, (X, Y.mT), 3 * 4 * 3),
        (lambda x, y: torch.einsum("bi,bi->b", x, y), (X, Y), 3 * 4),
    ],
    ids=["matmul", "einsum"],
)
def test_a_complex_multiply_accumulate_is_four_real_ones(
    function: Callable[..., Tensor], given: tuple[Tensor, ...], products: int
) -> None:
    found = totals(function, *given)
    assert found.macs == 4 * products
    assert found.flops >= 2 * found.macs


def test_a_complex_bias_is_two_flops_per_output() -> None:
    layer = nn.Linear(4, 5, dtype=torch.complex64)
    found = tg.analyze(layer, inputs=X, advice=False).totals
    assert (found.macs, found.flops) == (4 * 3 * 4 * 5, 8 * 3 * 4 * 5 + 2 * 3 * 5)
