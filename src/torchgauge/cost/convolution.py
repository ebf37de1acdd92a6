"""Convolutions of every rank: each output element is a sum over its group's input channels and the kernel.

A transposed one is seen from the input, whose every element is spread over the kernel. Taps that fall on padding count:
the closed form of the textbook has no border. A bias is one flop per output, no MAC.
The elements read of the input are those that the windows touch: a 1×1 kernel with a stride of 2 reads every fourth
element.
"""

from __future__ import annotations

from math import prod

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import argument, products, windows_read
from torchgauge.facts import TensorSpec

_PLAIN = (
    "aten::cudnn_convolution_relu", "aten::miopen_convolution_relu", "aten::cudnn_convolution_add_relu",
    "aten::miopen_convolution_add_relu", "mkldnn::_convolution_pointwise",
    "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::_convolution_mode", "aten::mkldnn_convolution",
    "aten::cudnn_convolution", "aten::miopen_convolution", "aten::miopen_depthwise_convolution",
    "aten::_mps_convolution", "aten::_slow_conv2d_forward", "aten::slow_conv3d", "aten::slow_conv3d_forward",
    "aten::slow_conv_dilated2d", "aten::slow_conv_dilated3d", "aten::thnn_conv2d", "aten::_conv_depthwise2d",
    "aten::conv_depthwise3d", "aten::_nnpack_spatial_convolution", "onednn::qconv_pointwise",
    "onednn::qconv1d_pointwise", "onednn::qconv2d_pointwise", "onednn::qconv3d_pointwise",
)  # fmt: skip
_TRANSPOSED = (
    "aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d", "aten::cudnn_convolution_transpose",
    "aten::miopen_convolution_transpose", "aten::_mps_convolution_transpose", "aten::slow_conv_transpose2d",
    "aten::slow_conv_transpose3d", "mkldnn::_convolution_transpose_pointwise",
)  # fmt: skip
_PACKED = (
    *(f"quantized::conv{rank}d{form}" for rank in (1, 2, 3) for form in ("", "_relu", "_dynamic", "_add", "_add_relu")),
    *(f"quantized::conv_transpose{rank}d{form}" for rank in (1, 2, 3) for form in ("", "_dynamic")),
)
_BACKWARD = (
    "aten::convolution_backward", "aten::convolution_backward_overrideable", "aten::_slow_conv2d_backward",
    "aten::mps_convolution_backward", "aten::mps_convolution_transpose_backward",
)  # fmt: skip


@formula("aten::convolution", "aten::_convolution", "aten::convolution_overrideable", category="convolution")
def convolution(call: Call) -> Work:
    return transposed(call) if call["transposed"] else plain(call)


@formula(*_PLAIN, category="convolution")
def plain(call: Call) -> Work:
    fused = call.out.numel * (("_relu" in call.op) + ("_add_" in call.op))
    work = products(call, _spread(call.out, _weight(call)), _bias_flops(call) + fused)
    return _read_windows(call, call.out, work)


@formula(*_TRANSPOSED, category="convolution")
def transposed(call: Call) -> Work:
    return products(call, _spread(_input(call), _weight(call)), _bias_flops(call))


@formula(*_PACKED, category="convolution")
def packed(call: Call) -> Work:
    """Products of integers; the weight is in an object of C++. Floats that come in and go out are converted."""
    converted = sum(spec.numel for spec in (call.first, call.out) if spec.is_floating)
    seen_from = call.first if "transpose" in call.op else call.out
    return Work(_spread(seen_from, call["unpacked_weight"]), flops=2 * converted)


@formula("aten::conv_tbc", category="convolution")
def conv_tbc(call: Call) -> Work:
    """Time, batch, channel; the weight is kernel × input channels × output channels."""
    return products(call, call.out.numel * prod(call["weight"].shape[:2]), call.out.numel)


@formula("aten::conv_tbc_backward", category="convolution")
def conv_tbc_backward(call: Call) -> Work:
    grad = call["self"]
    return products(call, 2 * grad.numel * prod(call["weight"].shape[:2]), grad.numel)


@formula(*_BACKWARD, category="convolution")
def convolution_backward(call: Call) -> Work:
    """The gradients of the input and of the weight cost one forward each; that of the bias is a sum."""
    grad = call["grad_output"]
    is_transposed = call.get("transposed") or "transpose" in call.op
    to_input, to_weight, to_bias = (*call.get("output_mask", (True, True, True)), False)[:3]
    macs = (bool(to_input) + bool(to_weight)) * _spread(_input(call) if is_transposed else grad, call["weight"])
    work = products(call, macs, bool(to_bias) * grad.numel)
    return work if is_transposed else _read_windows(call, grad, work)


def _spread(seen_from: TensorSpec, weight: TensorSpec) -> int:
    return seen_from.numel * prod(weight.shape[1:])


def _read_windows(call: Call, out: TensorSpec, work: Work) -> Work:
    given, kernel = _input(call), _weight(call).shape[2:]
    if not call.get("stride") or len(given.shape) != len(kernel) + 2:
        return work  # a packed weight hides its kernel
    return work._replace(bytes_read=windows_read(call, given, out, kernel))


def _bias_flops(call: Call) -> int:
    return call.out.numel if argument(call, "bias", "B") is not None else 0


def _input(call: Call) -> TensorSpec:
    spec: TensorSpec = argument(call, "input", "self", "X", "qx")
    return spec


def _weight(call: Call) -> TensorSpec:
    spec: TensorSpec = argument(call, "weight", "W", "qw")
    return spec
