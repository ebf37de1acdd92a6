from __future__ import annotations

import torch
from torch import nn

import torchgauge as tg
from tests import zoo


def test_a_step_of_a_linear_ladder_costs_three_forwards_less_the_first_input() -> None:
    found = tg.analyze(zoo.Residual(width=8, blocks=6), input_size=(2, 8), mode="train")
    forward = 6 * 2 * 64
    assert found.totals.macs == 3 * forward - 2 * 64
    assert {op.phase for op in found.ops} == {"forward", "backward", "optimizer"}


def test_backward_ops_belong_to_the_module_whose_forward_they_undo() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    found = tg.analyze(model, input_size=(2, 3, 9, 9), mode="train")
    backward = {op.module: op.macs for op in found.ops if op.op == "aten::convolution_backward"}
    first, last = 2 * 8 * 27 * 49, 2 * 4 * 72 * 25
    assert backward == {"0": first, "3": 2 * last}  # the input needs no gradient
    modules = {op.module for op in found.ops if op.op == "aten::native_batch_norm_backward"}
    assert modules == {"1"}


def test_optimizer_ops_belong_to_the_owner_of_the_parameter() -> None:
    found = tg.analyze(zoo.Residual(blocks=2), input_size=(2, 8), mode="train")
    owners = {op.module for op in found.ops if op.phase == "optimizer" and op.weights}
    assert owners == {"blocks.0.0", "blocks.1.0"}


def test_frozen_parameters_get_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    found = tg.analyze(model, input_size=(2, 4), mode="train")
    assert found.totals.macs == 2 * 16 * 2 + 2 * 16
    assert found.totals.trainable_params == 20


def test_activations_are_kept_for_the_backward_pass() -> None:
    inference = tg.analyze(zoo.Residual(width=64, blocks=8), input_size=(128, 64))
    train = tg.analyze(zoo.Residual(width=64, blocks=8), input_size=(128, 64), mode="train")
    assert train.totals.peak_activation_bytes > 2 * inference.totals.peak_activation_bytes
    assert train.capture.run.warnings == ("the optimizer step is AdamW with torch's defaults",)


def test_a_returned_loss_is_where_the_backward_pass_starts() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(4, 1)
            self.other = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.used(x).sum(), "features": self.other(x)}

    found = tg.analyze(WithLoss(), input_size=(2, 4), mode="train")
    assert {op.module for op in found.ops if op.phase == "backward"} <= {"", "used"}


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 64, 32))
        self.first = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor([8, 16, 24, 32], dtype=torch.int32)
        return torch._grouped_mm(self.first(x), self.weight, offs=ends)


def test_grouped_products_are_trained_in_float32() -> None:
    """torch's meta kernel takes bfloat16 only, its CPU kernel float32 as well."""
    found = tg.analyze(Experts(), inputs=torch.randn(32, 64), mode="train")
    shapes = [op["output_shapes"][0] for op in found.ops if op["op"] == "aten::_grouped_mm"]
    assert shapes == [[32, 32], [4, 64, 32], [32, 64]]
