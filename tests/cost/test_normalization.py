from __future__ import annotations

import pytest

from tests.cost.calls import cost, spec

X = spec(2, 6, 4, 4)
CHANNEL = spec(6)


def test_evaluating_a_batch_norm_is_four_flops_per_element() -> None:
    done = cost(
        "aten::_native_batch_norm_legit_no_training",
        X, input=X, weight=CHANNEL, bias=CHANNEL, running_mean=CHANNEL, running_var=CHANNEL,
    )  # fmt: skip
    assert (done.macs, done.flops) == (0, 4 * X.numel + 2 * 6)


def test_training_a_batch_norm_adds_statistics_and_writes_their_running_means() -> None:
    saved = spec(6)
    done = cost(
        "aten::native_batch_norm",
        X, saved, saved,
        input=X, weight=CHANNEL, bias=CHANNEL, running_mean=CHANNEL, running_var=CHANNEL, training=True,
    )  # fmt: skip
    assert done.flops == 8 * X.numel + (4 + 6) * 6
    assert done.bytes_written == 4 * (X.numel + 2 * 6 + 2 * 6)


def test_a_batch_norm_without_weights_only_standardises() -> None:
    done = cost("aten::batch_norm", X, input=X, running_mean=CHANNEL, running_var=CHANNEL, training=False)
    assert done.flops == 2 * X.numel + 2 * 6


def test_layer_norm() -> None:
    x = spec(5, 7, 16)
    done = cost("aten::native_layer_norm", x, input=x, normalized_shape=[16], weight=spec(16), bias=spec(16))
    assert done.flops == 8 * x.numel + 4 * 35


def test_group_and_instance_norm_differ_in_their_groups() -> None:
    grouped = cost("aten::native_group_norm", X, input=X, weight=CHANNEL, bias=CHANNEL, group=3)
    each = cost("aten::instance_norm", X, input=X, weight=CHANNEL, bias=CHANNEL, use_input_stats=True)
    assert grouped.flops == 8 * X.numel + 4 * 2 * 3
    assert each.flops == 8 * X.numel + 4 * 2 * 6


@pytest.mark.parametrize(("weight", "per_element"), [(spec(16), 4), (None, 3)])
def test_rms_norm(weight: object, per_element: int) -> None:
    x = spec(5, 16)
    done = cost("aten::_fused_rms_norm", x, input=x, normalized_shape=[16], weight=weight)
    assert done.flops == per_element * x.numel + 3 * 5


def test_weight_norm() -> None:
    done = cost("aten::_weight_norm_interface", spec(8, 4), spec(8, 1), v=spec(8, 4), g=spec(8, 1))
    assert done.flops == 3 * 32 + 2 * 8


@pytest.mark.parametrize(
    ("train", "mask", "per_element"),
    [
        (True, [True, True, True], 13),
        (True, [True, False, False], 10),
        (False, [True, True, True], 7),
        (False, [True, False, False], 2),
    ],
)
def test_backward_of_a_batch_norm(train: bool, mask: list[bool], per_element: int) -> None:
    done = cost(
        "aten::native_batch_norm_backward", X, grad_out=X, input=X, weight=CHANNEL, train=train, output_mask=mask
    )
    assert done.flops == per_element * X.numel


def test_backward_of_a_layer_norm_honours_its_mask() -> None:
    x = spec(5, 16)
    done = cost(
        "aten::native_layer_norm_backward", x, grad_out=x, input=x, weight=spec(16), output_mask=[True, True, False]
    )
    assert done.flops == 12 * x.numel
