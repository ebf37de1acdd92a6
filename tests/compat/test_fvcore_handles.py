"""Handles of fvcore: what they see, and how they are set, changed and cleared."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torchgauge.compat.fvcore import FlopCountAnalysis
from torchgauge.compat.fvcore.nn.flop_count import _DEFAULT_SUPPORTED_OPS
from torchgauge.compat.fvcore.nn.jit_analysis import JitModelAnalysis
from torchgauge.compat.fvcore.nn.jit_handles import conv_flop_jit, get_shape, linear_flop_jit


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.fc = nn.Linear(20, 10)
        self.inner = nn.Sequential(nn.Linear(10, 10), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.fc(self.conv(x).flatten(1))) ** 2


def test_handles_see_shapes_and_values_of_their_op() -> None:
    seen: list[Any] = []

    def handle(inputs: list[Any], outputs: list[Any]) -> int:
        seen.append(([get_shape(value) for value in inputs[:2]], get_shape(outputs[0]), inputs[6].toIValue()))
        return len(inputs)

    model = nn.ConvTranspose2d(3, 4, 2)
    analysis = FlopCountAnalysis(model, torch.randn(1, 3, 5, 5)).set_op_handle("aten::_convolution", handle)
    assert analysis.by_operator() == {"_convolution": 13}
    assert seen == [([[1, 3, 5, 5], [3, 4, 2, 2]], [1, 4, 6, 6], True)]


def test_a_handle_of_none_makes_an_op_free() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    analysis = FlopCountAnalysis(model, torch.randn(1, 3, 2, 2))
    assert analysis.total() == 4 * 12 + 2 * 16
    assert analysis.set_op_handle("aten::batch_norm", None).total() == 4 * 12
    assert not analysis.unsupported_ops()


def test_handles_can_be_set_changed_and_cleared() -> None:
    model, x = Nested(), torch.randn(1, 4, 5)
    analysis = JitModelAnalysis(model, x).set_op_handle("aten::linear", linear_flop_jit)
    assert analysis.total() == 300
    assert analysis.unsupported_ops() == {"aten::_convolution": 1, "aten::pow": 1}
    assert analysis.set_op_handle(**{"aten::_convolution": conv_flop_jit}).by_operator("conv") == {"conv": 240}
    other = analysis.copy(new_inputs=torch.randn(3, 4, 5))
    assert other.total() == 3 * analysis.total()
    assert analysis.clear_op_handles().by_module() == dict.fromkeys(
        ("", "conv", "fc", "inner", "inner.0", "inner.1"), 0
    )
    assert other.total() == 3 * 540


def test_default_handles_read_graphs_of_torch_jit_too() -> None:
    graph = torch.jit.trace(lambda a, b: torch.einsum("nc,nchw->hw", a, b), (torch.rand(3, 4), torch.rand(3, 4, 2, 3)))
    node = next(node for node in graph.graph.nodes() if node.kind() == "aten::einsum")
    assert _DEFAULT_SUPPORTED_OPS["aten::einsum"](list(node.inputs()), list(node.outputs())) == 72
