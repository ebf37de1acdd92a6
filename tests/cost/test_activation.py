from __future__ import annotations

import pytest

from tests.cost.calls import cost, judge, spec

X = spec(3, 8)


@pytest.mark.parametrize(
    ("name", "per_element"),
    [("relu", 1), ("hardtanh", 2), ("leaky_relu", 2), ("sigmoid", 4), ("tanh", 1), ("silu", 5), ("elu", 4),
     ("softplus", 5), ("mish", 5), ("hardswish", 5), ("sigmoid_backward", 3), ("threshold_backward", 1)],
)  # fmt: skip
def test_flops_per_element_of_the_textbook_form(name: str, per_element: int) -> None:
    found = judge(f"aten::{name}", X, self=X)
    assert found.category == "activation"
    assert (found.cost.macs, found.cost.flops) == (0, per_element * X.numel)


def test_gelu_costs_more_in_its_tanh_form() -> None:
    assert cost("aten::gelu", X, self=X, approximate="none").flops == 5 * X.numel
    assert cost("aten::gelu", X, self=X, approximate="tanh").flops == 9 * X.numel
    assert cost("aten::gelu_backward", X, grad_output=X, self=X, approximate="none").flops == 11 * X.numel


def test_glu_counts_its_output() -> None:
    assert cost("aten::glu", spec(3, 4), self=X).flops == 5 * 12


@pytest.mark.parametrize("op", ["aten::softmax", "aten::_softmax", "aten::_safe_softmax"])
def test_softmax_is_five_flops_per_element(op: str) -> None:
    found = judge(op, X, self=X, dim=-1)
    assert (found.category, found.cost.flops) == ("softmax", 5 * X.numel)


def test_log_softmax_takes_one_logarithm_per_row() -> None:
    assert cost("aten::_log_softmax", X, self=X, dim=-1).flops == 5 * 24 + 3
    assert cost("aten::_log_softmax", X, self=X, dim=0).flops == 5 * 24 + 8
    assert cost("aten::_log_softmax", spec(), self=spec(), dim=0).flops == 5 + 1


def test_logsumexp_and_the_gradient_of_softmax() -> None:
    assert cost("aten::logsumexp", spec(3), self=X, dim=[1]).flops == 4 * 24 + 2 * 3
    assert cost("aten::_softmax_backward_data", X, grad_output=X, output=X, dim=1).flops == 4 * 24
