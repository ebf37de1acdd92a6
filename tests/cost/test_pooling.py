from __future__ import annotations

import pytest

from tests.cost.calls import cost, judge, spec

PLANES = spec(2, 3, 8, 8)


@pytest.mark.parametrize("op", ["aten::max_pool2d_with_indices", "aten::avg_pool2d"])
@pytest.mark.parametrize("kernel", [[3, 3], [3]])
def test_a_window_costs_its_elements(op: str, kernel: list[int]) -> None:
    out = spec(2, 3, 4, 4)
    found = judge(op, out, self=PLANES, kernel_size=kernel)
    assert (found.category, found.cost.flops) == ("pooling", 9 * out.numel)


def test_pooling_in_one_and_three_dimensions() -> None:
    assert cost("aten::max_pool1d", spec(2, 3, 4), self=spec(2, 3, 8), kernel_size=[2]).flops == 2 * 24
    assert cost("aten::avg_pool3d", spec(2, 4, 4, 4), self=spec(2, 8, 8, 8), kernel_size=[2]).flops == 8 * 128


@pytest.mark.parametrize(
    ("given", "wanted", "covered"),
    [((8, 8), (1, 1), 64), ((8, 8), (4, 4), 64), ((7, 7), (3, 3), 9 * 9), ((5, 8), (2, 8), 6 * 8)],
)
def test_adaptive_windows_are_exact(given: tuple[int, int], wanted: tuple[int, int], covered: int) -> None:
    done = cost("aten::_adaptive_avg_pool2d", spec(2, 3, *wanted), self=spec(2, 3, *given))
    assert done.flops == 6 * covered


def test_gradients() -> None:
    grad = spec(2, 3, 4, 4)
    to_max = cost("aten::max_pool2d_with_indices_backward", PLANES, grad_output=grad, self=PLANES, kernel_size=[2, 2])
    to_mean = cost("aten::avg_pool2d_backward", PLANES, grad_output=grad, self=PLANES, kernel_size=[2, 2])
    assert (to_max.flops, to_mean.flops) == (grad.numel, 5 * grad.numel)


def test_a_window_smaller_than_its_stride_leaves_elements_unread() -> None:
    done = cost("aten::avg_pool2d", spec(1, 2, 4, 4), self=spec(1, 2, 8, 8), kernel_size=[1, 1], stride=[2, 2])
    assert done.bytes_read == 4 * 2 * 16
