"""What `torch.jit.optimize_for_inference` puts into a graph for oneDNN, as the ops it stands for.

Tensors in oneDNN's own layouts are fake tensors like others here; bringing them there and back copies them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten: Any = torch.ops.aten


def _convolution(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    return _aten.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


ONEDNN: dict[str, Callable[..., Any]] = {
    "prim::mkldnn_convolution": _convolution,
    "prim::BroadcastMKLDNNTensors": lambda *tensors: tuple(torch.broadcast_tensors(*tensors)),
    "prim::MKLDNNScalarMul": lambda x, factor: _aten.mul(x, factor),
    "prim::MKLDNNScalarMul_": lambda x, factor: _aten.mul_(x, factor),
    "prim::MKLDNNLayerNorm": lambda x, *rest: _aten.layer_norm(x, *rest),
    "prim::MKLDNNLayerNorm_": lambda x, *rest: _aten.layer_norm(x, *rest),
    "aten::to_mkldnn": lambda x, *dtype: _aten.clone(x),
    "prim::MKLDNNHardSwish": _aten.hardswish,
    "prim::MKLDNNHardSwish_": _aten.hardswish_,
    "prim::MKLDNNHardSigmoid": _aten.hardsigmoid,
    "prim::MKLDNNHardSigmoid_": _aten.hardsigmoid_,
    "prim::MKLDNNHardTanh": _aten.hardtanh,
    "prim::MKLDNNHardTanh_": _aten.hardtanh_,
    "prim::MKLDNNRelu6": _aten.relu6,
    "prim::MKLDNNRelu6_": _aten.relu6_,
    "prim::MKLDNNClamp": _aten.clamp,
    "prim::MKLDNNClamp_": _aten.clamp_,
}
