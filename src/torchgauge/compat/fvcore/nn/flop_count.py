"""FLOPs in fvcore's sense: one multiply-add is one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import torch
from torch import nn

from torchgauge.compat.fvcore.nn.jit_analysis import JitModelAnalysis
from torchgauge.compat.fvcore.nn.jit_handles import (
    Handle,
    batchnorm_flop_jit,
    conv_flop_jit,
    elementwise_flop_counter,
    multiply_adds,
    norm_flop_counter,
)

_DEFAULT_SUPPORTED_OPS: dict[str, Handle] = {
    "aten::addmm": multiply_adds,
    "aten::bmm": multiply_adds,
    "aten::_convolution": conv_flop_jit,
    "aten::einsum": multiply_adds,
    "aten::matmul": multiply_adds,
    "aten::mm": multiply_adds,
    "aten::linear": multiply_adds,
    "aten::batch_norm": batchnorm_flop_jit,
    "aten::group_norm": norm_flop_counter(2),
    "aten::layer_norm": norm_flop_counter(2),
    "aten::instance_norm": norm_flop_counter(1),
    "aten::upsample_nearest2d": elementwise_flop_counter(0, 1),
    "aten::upsample_bilinear2d": elementwise_flop_counter(0, 4),
    "aten::adaptive_avg_pool2d": elementwise_flop_counter(1, 0),
    "aten::grid_sampler": elementwise_flop_counter(0, 4),
}


class FlopCountAnalysis(JitModelAnalysis):
    """FLOPs by module and operator. Beside the ops with a handle, every op that multiplies and adds (attention, RNNs,
    `baddbmm`, …) is counted with the project's own figure, under its own name."""

    def __init__(self, model: nn.Module, inputs: torch.Tensor | tuple[object, ...]) -> None:
        super().__init__(model, inputs)
        self.set_op_handle(**_DEFAULT_SUPPORTED_OPS)
        self._counts_others = True


def flop_count(
    model: nn.Module, inputs: tuple[object, ...], supported_ops: Mapping[str, Handle] | None = None
) -> tuple[defaultdict[str, float], Counter[str]]:
    """GFLOPs by operator, and how often each unsupported operator was met."""
    return FlopCountAnalysis(model, inputs).set_op_handle(**supported_ops or {}).by_operator_in(1e9)
