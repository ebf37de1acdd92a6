"""Activations: elements that convolutions and matrix products give."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import torch
from torch import nn

from torchgauge.compat.fvcore.nn.jit_analysis import JitModelAnalysis
from torchgauge.compat.fvcore.nn.jit_handles import Handle, generic_activation_jit

_DEFAULT_SUPPORTED_OPS: dict[str, Handle] = {
    "aten::_convolution": generic_activation_jit("conv"),
    "aten::addmm": generic_activation_jit(),
    "aten::bmm": generic_activation_jit(),
    "aten::einsum": generic_activation_jit(),
    "aten::matmul": generic_activation_jit(),
    "aten::mm": generic_activation_jit(),
    "aten::linear": generic_activation_jit(),
}


class ActivationCountAnalysis(JitModelAnalysis):
    """Activations by module and operator."""

    def __init__(self, model: nn.Module, inputs: torch.Tensor | tuple[object, ...]) -> None:
        super().__init__(model, inputs)
        self.set_op_handle(**_DEFAULT_SUPPORTED_OPS)


def activation_count(
    model: nn.Module, inputs: tuple[object, ...], supported_ops: Mapping[str, Handle] | None = None
) -> tuple[defaultdict[str, float], Counter[str]]:
    """Millions of activations by operator, and how often each unsupported operator was met."""
    return ActivationCountAnalysis(model, inputs).set_op_handle(**supported_ops or {}).by_operator_in(1e6)
