"""A run on fake tensors must show op by op what a real run shows: names, shapes, strides, costs, memory alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests import zoo
from torchgauge.capture import Request, Trace, trace_fake, trace_real
from torchgauge.source import Candidate

REQUEST = Request(device=torch.device("cpu"))
TRAIN = Request(device=torch.device("cpu"), train=True)


class Mixed(nn.Module):
    """Layouts and broadcasts that the shape rules must get right."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, stride=2)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4, dilation=2)
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(memory_format=torch.channels_last)
        y = self.norm(self.conv(x)) * self.scale
        y = nn.functional.hardswish(y + y.mean((2, 3), keepdim=True))
        a, b = self.up(y).chunk(2, dim=1)
        z = self.depthwise(torch.cat([a, b], 1).roll(1, 2))
        z = torch.where(z > 0, z, z.flip(3)).masked_fill(z.isnan(), 0.0)
        z = nn.functional.max_pool2d(z.contiguous(), 3, 2, ceil_mode=True)
        z = nn.functional.avg_pool2d(z, 2, padding=1, ceil_mode=True)
        return z.permute(0, 2, 3, 1).softmax(-1).transpose(0, 1).clone().sum((1, 2))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "ladder": (zoo.Residual, (torch.randn(2, 8),)),
    "hand-written attention": (zoo.HandAttention, (torch.randn(2, 10, 32),)),
    "fused attention": (zoo.FusedAttention, (torch.randn(2, 10, 32),)),
    "grouped queries": (lambda: zoo.FusedAttention(kv_heads=2, causal=True), (torch.randn(2, 10, 32),)),
    "LSTM": (lambda: zoo.Recurrent(nn.LSTM, num_layers=2, bidirectional=True), (torch.randn(5, 3, 12),)),
    "GRU": (lambda: zoo.Recurrent(nn.GRU, batch_first=True), (torch.randn(5, 3, 12),)),
    "RNN": (lambda: zoo.Recurrent(nn.RNN), (torch.randn(5, 3, 12),)),
    "buffers written": (zoo.Remembers, (torch.randn(3, 4),)),
    "shapes changed in place": (zoo.InPlaceShapes, (torch.randn(3, 4),)),
    "functional": (zoo.Functional, (torch.randn(2, 8),)),
    "two inputs": (zoo.TwoInputs, (torch.randn(2, 4), torch.randn(2, 6))),
    "layouts": (Mixed, (torch.randn(2, 8, 16, 16),)),
    "encoder fast path": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2),
        (torch.randn(2, 5, 32),),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ops_shapes_strides_costs_and_memory_are_those_of_a_real_run(name: str) -> None:
    build, args = CASES[name]
    compare(build(), args, REQUEST)


def test_one_tensor_given_three_times_stays_one_tensor() -> None:
    x = torch.randn(2, 5, 32)
    fake, _ = compare(nn.MultiheadAttention(32, 4, batch_first=True), (x, x, x), REQUEST)
    assert [op.op for op in fake.ops] == ["aten::_native_multi_head_attention"]


@pytest.mark.parametrize("name", ["ladder", "fused attention", "two inputs"])
def test_a_training_step_is_that_of_a_real_run(name: str) -> None:
    build, args = CASES[name]
    compare(build(), args, TRAIN)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torchvision")
@pytest.mark.parametrize(
    "name",
    ["resnet18", "swin_t", "convnext_tiny", "mobilenet_v3_small", "efficientnet_b0", "maxvit_t", "shufflenet_v2_x0_5",
     "densenet121", "googlenet", "squeezenet1_0", "mnasnet0_5", "regnet_y_400mf", "vit_b_32"],
)  # fmt: skip
def test_torchvision_models_on_fake_tensors_and_for_real(name: str) -> None:
    from torchgauge.source import ensure_torchvision_imports

    ensure_torchvision_imports()
    import torchvision

    options = {"init_weights": False} if name == "googlenet" else {}
    compare(torchvision.models.get_model(name, **options), (torch.randn(1, 3, 224, 224),), REQUEST)


def compare(model: nn.Module, args: tuple[Any, ...], request: Request) -> tuple[Trace, Trace]:
    candidate = Candidate(args, {}, None)
    fake = trace_fake(model, candidate, request)
    real = trace_real(model, candidate, request, "to compare")
    assert [op.op for op in fake.ops] == [op.op for op in real.ops]
    for traced, true in zip(fake.ops, real.ops, strict=True):
        assert traced == true, f"op {traced.index}"
    assert fake.modules == real.modules
    assert fake.params == real.params
    return fake, real
