from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.checked import DEVICES, analyze_checked, assert_same_figures
from tests.models.closed_forms import linear

INPUTS, OUTPUTS = 12, 20


@pytest.mark.parametrize("shape", [(), (3,), (3, 5), (2, 3, 5)], ids=lambda shape: f"{len(shape)}d")
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_costs_its_matrix_for_every_row(shape: tuple[int, ...], bias: bool) -> None:
    x = torch.zeros(*shape, INPUTS)
    analysis = analyze_checked(nn.Linear(INPUTS, OUTPUTS, bias=bias), inputs=x)
    rows = x.numel() // INPUTS
    assert analysis.totals.macs == linear(rows, INPUTS, OUTPUTS)
    assert analysis.totals.flops == 2 * linear(rows, INPUTS, OUTPUTS) + (rows * OUTPUTS if bias else 0)


class Apply(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


PRODUCTS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]], int]] = {
    "vectors": (torch.dot, [(7,), (7,)], 7),
    "matrix and vector": (torch.mv, [(5, 7), (7,)], 5 * 7),
    "matrices": (torch.mm, [(5, 7), (7, 3)], 5 * 7 * 3),
    "added matrices": (torch.addmm, [(5, 3), (5, 7), (7, 3)], 5 * 7 * 3),
    "batches": (torch.bmm, [(2, 5, 7), (2, 7, 3)], 2 * 5 * 7 * 3),
    "added batches": (torch.baddbmm, [(2, 5, 3), (2, 5, 7), (2, 7, 3)], 2 * 5 * 7 * 3),
    "summed batches": (torch.addbmm, [(5, 3), (2, 5, 7), (2, 7, 3)], 2 * 5 * 7 * 3),
    "broadcast": (torch.matmul, [(4, 1, 5, 7), (2, 7, 3)], 4 * 2 * 5 * 7 * 3),
    "einsum": (lambda a, b: torch.einsum("bhqd,bkhd->bhqk", a, b), [(2, 4, 5, 7), (2, 6, 4, 7)], 2 * 4 * 5 * 6 * 7),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=2), [(3, 4, 5), (4, 5, 6)], 3 * 4 * 5 * 6),
    "functional": (F.linear, [(5, 7), (3, 7)], 5 * 7 * 3),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_every_form_of_a_matrix_product(name: str) -> None:
    function, shapes, macs = PRODUCTS[name]
    analysis = analyze_checked(Apply(function), inputs=tuple(torch.zeros(shape) for shape in shapes))
    assert analysis.totals.macs == macs


def test_a_bilinear_layer_is_a_matrix_product_and_a_dot_product_per_output() -> None:
    analysis = analyze_checked(nn.Bilinear(4, 5, 6), inputs=(torch.zeros(3, 4), torch.zeros(3, 5)))
    assert analysis.totals.macs == 3 * 6 * (4 * 5 + 5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_real_and_meta_parameters_give_the_same_figures(device: str, dtype: str) -> None:
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS), nn.GELU(), nn.Linear(OUTPUTS, 1, bias=False))
    options: dict[str, Any] = {"device": device, "dtype": dtype}
    real = analyze_checked(model, input_size=(3, INPUTS), **options)
    assert_same_figures(real, analyze_checked(model.to("meta"), input_size=(3, INPUTS), **options))
