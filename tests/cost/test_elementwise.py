from __future__ import annotations

from typing import Any

import pytest

from tests.cost.calls import cost, judge, spec
from torchgauge.facts import Cost

X = spec(3, 8)


@pytest.mark.parametrize(
    ("name", "arguments", "per_element"),
    [
        ("mul", {}, 1),
        ("add", {"alpha": 1}, 1),
        ("add", {"alpha": 0.5}, 2),
        ("addcmul", {"value": 1}, 2),
        ("addcdiv", {"value": -0.1}, 3),
        ("lerp", {}, 3),
        ("clamp", {"min": 0.0}, 1),
        ("clamp", {"min": 0.0, "max": 1.0}, 2),
        ("pow", {"exponent": 2}, 1),
        ("where", {}, 0),
        ("native_dropout_backward", {}, 2),
        ("abs_", {}, 1),
    ],
)
def test_flops_per_element(name: str, arguments: dict[str, Any], per_element: int) -> None:
    found = judge(f"aten::{name}", X, self=X, **arguments)
    assert (found.category, found.cost.flops) == ("elementwise", per_element * X.numel)


def test_dropout_works_only_in_training() -> None:
    mask = spec(3, 8, dtype="bool")
    assert cost("aten::native_dropout", X, mask, input=X, p=0.1, train=True).flops == 3 * X.numel
    assert cost("aten::native_dropout", X, mask, input=X, p=0.1, train=False).flops == 0


def test_random_bits_read_a_tensor_of_probabilities_but_no_shape_giver() -> None:
    assert cost("aten::bernoulli_", X, self=X, p=0.5) == Cost(0, 24, 0, 96)
    assert cost("aten::bernoulli", X, self=X) == Cost(0, 24, 96, 96)


def test_lists_of_tensors_written_in_place() -> None:
    tensors = [spec(4), spec(2, 3)]
    done = cost("aten::_foreach_add_", self=tensors, other=tensors, alpha=2)
    assert done == Cost(0, 2 * 10, 2 * 40, 40)


def test_lists_of_tensors_out_of_place() -> None:
    tensors = [spec(4), spec(2, 3)]
    assert cost("aten::_foreach_sqrt", *tensors, self=tensors) == Cost(0, 10, 40, 40)
    assert cost("aten::_foreach_norm", spec(), spec(), self=tensors, ord=2).flops == 2 * 10 + 2
    assert cost("aten::_foreach_copy_", self=tensors, src=tensors) == Cost(0, 0, 40, 40)


def adam(op: str, **options: Any) -> Cost:
    tensors = [spec(4), spec(2, 3)]
    arguments = {"self": tensors, "grads": tensors, "exp_avgs": tensors, "exp_avg_sqs": tensors, "max_exp_avg_sqs": []}
    return cost(op, **{**arguments, "amsgrad": False, "weight_decay": 0.0, "maximize": False, **options})


def test_a_fused_adam_step_reads_four_lists_and_writes_three() -> None:
    assert adam("aten::_fused_adam_") == Cost(0, 13 * 10, 4 * 40, 3 * 40)


def test_options_of_a_fused_step_cost_flops() -> None:
    assert adam("aten::_fused_adam_", weight_decay=0.1).flops == 15 * 10
    assert adam("aten::_fused_adamw_", weight_decay=0.1).flops == 14 * 10
    assert adam("aten::_fused_adamw_", maximize=True, amsgrad=True).flops == 15 * 10


def test_fused_sgd_with_and_without_momentum() -> None:
    tensors = [spec(10)]
    plain = cost("aten::_fused_sgd_", self=tensors, grads=tensors, momentum_buffer_list=[], momentum=0.0)
    heavy = cost(
        "aten::_fused_sgd_", self=tensors, grads=tensors, momentum_buffer_list=tensors, momentum=0.9, nesterov=True
    )
    assert plain == Cost(0, 20, 80, 40)
    assert heavy == Cost(0, 60, 120, 80)


def test_quantizing_there_and_back() -> None:
    quantized = spec(3, 8, dtype="qint8")
    assert cost("aten::quantize_per_tensor", quantized, self=X).flops == 5 * 24
    assert cost("aten::dequantize", X, self=quantized).flops == 2 * 24
    assert cost("quantized::add", quantized, qa=quantized, qb=quantized).flops == 0
