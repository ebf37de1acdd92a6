"""Linear layers: input @ weight.T + bias, plain, packed and quantized.

The MACs are the elements of the input × output features, so the shape of a packed weight is not needed. Layers that
multiply integers have MACs but no flops for them; if their input and output are floating-point, the conversions count:
two flops per element (scale and round).
"""

from __future__ import annotations

from math import prod

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import argument, products, rows
from torchgauge.facts import TensorSpec

_INPUT_NAMES = ("input", "self", "X", "x", "qx", "inp")


@formula(
    "aten::linear", "aten::mkldnn_linear", "mkldnn::_linear_pointwise", "mkl::_mkl_linear",
    "aten::_mixed_dtypes_linear", "aten::fbgemm_linear_fp16_weight",
    "aten::fbgemm_linear_fp16_weight_fp32_activation", "quantized::linear_dynamic_fp16",
    "quantized::linear_relu_dynamic_fp16", "quantized::linear_dynamic_fp16_unpacked_weight",
    "onednn::linear_dynamic_fp16", "onednn::linear_relu_dynamic_fp16",
    category="matmul",
)  # fmt: skip
def linear(call: Call) -> Work:
    # A fused activation or sum is one flop per output; its name may be "none".
    fused = call.get("attr", call.get("activation", "none"))
    is_fused = fused not in ("none", "") or "relu" in call.op
    return products(call, _linear_macs(call), (_has_bias(call) + is_fused) * call.out.numel)


@formula("aten::_weight_int8pack_mm", category="matmul")
def int8_weight_linear(call: Call) -> Work:
    """The scale of a row of weights multiplies its output."""
    return products(call, _linear_macs(call), call.out.numel)


@formula(
    "aten::_weight_int4pack_mm", "aten::_weight_int4pack_mm_for_cpu", "quantized::int4mm_packed_weight_cpu",
    "aten::_weight_int4pack_mm_with_scales_and_zeros", category="matmul",
)  # fmt: skip
def int4_weight_linear(call: Call) -> Work:
    """Each weight is scaled and shifted before the product: its group is smaller than a row."""
    weights = _input(call).shape[-1] * call.out.shape[-1]
    return products(call, _linear_macs(call), 2 * weights)


@formula("bitsandbytes::gemm_4bit", "bitsandbytes::gemv_4bit", category="matmul")
def bitsandbytes_4bit_linear(call: Call) -> Work:
    """A weight is looked up in a table of 16 and scaled by its block."""
    given, (outputs, features) = call["A"], call["shapeB"]
    bias = call.out.numel if call.get("bias") is not None else 0
    return products(call, given.numel * outputs, outputs * features + bias)


@formula(
    "bitsandbytes::int8_linear_matmul", "bitsandbytes::int8_scaled_mm", "bitsandbytes::int8_mixed_scaled_mm",
    category="matmul",
)  # fmt: skip
def bitsandbytes_int8_linear(call: Call) -> Work:
    """Integer products; `scaled` ones are multiplied by the scales of their row and column."""
    macs = call["A"].numel * argument(call, "B", "CB").shape[0]
    bias = call.get("bias") is not None
    out = call.out if call.outputs else call["out"]
    return Work(macs, flops=(2 + bias) * out.numel if out.is_floating else 0)


@formula("quanto::qbytes_mm", category="matmul")
def quanto_linear(call: Call) -> Work:
    """One byte per weight; the scale of a row of weights multiplies its output."""
    return Work(macs := call["A"].numel * call["B"].shape[0], flops=2 * macs + call.out.numel)


@formula("torchao::float8_linear_cpu", "torchao::da8w4_linear_cpu", category="matmul")
def torchao_linear(call: Call) -> Work:
    """Both sides have scales; 4-bit weights and their inputs are integers."""
    macs = _linear_macs(call)
    scaling = (2 + _has_bias(call)) * call.out.numel
    return Work(macs, flops=scaling + (2 * macs if _input(call).is_floating else 0))


@formula("torchao::swizzle_mm", "torchao::swizzle_scaled_mm", category="matmul")
def swizzled_product(call: Call) -> Work:
    scaled = call.get("scale_a") is not None
    return products(call, call.out.numel * call["mat1"].shape[-1], (scaled + _has_bias(call)) * call.out.numel)


@formula("aten::_sparse_semi_structured_linear", category="matmul")
def semi_structured_linear(call: Call) -> Work:
    # Half of the weights are stored; the others are known zeros that nothing multiplies.
    return products(call, rows(call["input"]) * call["weight"].numel, _has_bias(call) * call.out.numel)


@formula(
    "quantized::linear", "quantized::linear_relu", "quantized::linear_leaky_relu", "quantized::linear_tanh",
    "quantized::linear_dynamic", "quantized::linear_relu_dynamic", "aten::_dyn_quant_matmul_4bit",
    "quantized::linear_with_input_q_dq_qweight_dq_output_fp32",
    "quantized::linear_with_input_q_dq_qweight_dq_relu_output_fp32",
    "aten::fbgemm_linear_int8_weight", "aten::fbgemm_linear_int8_weight_fp32_activation",
    "aten::_wrapped_quantized_linear_prepacked", "onednn::qlinear_pointwise",
    category="matmul",
)  # fmt: skip
def integer_linear(call: Call) -> Work:
    converted = (spec.numel for spec in (_input(call), call.out) if spec.is_floating)
    return Work(_linear_macs(call), flops=2 * sum(converted))


@formula("aten::linear_backward", "aten::mkldnn_linear_backward", category="matmul")
def linear_backward(call: Call) -> Work:
    grad = call["grad_output"]
    to_input, to_weight, to_bias = call["output_mask"]
    macs = (bool(to_input) + bool(to_weight)) * grad.numel * call["weight"].shape[-1]
    return products(call, macs, bool(to_bias) * grad.numel)


@formula("aten::mkldnn_linear_backward_input", category="matmul")
def linear_backward_input(call: Call) -> Work:
    return products(call, call["grad_output"].numel * call["weight"].shape[-1])


@formula("aten::mkldnn_linear_backward_weights", category="matmul")
def linear_backward_weights(call: Call) -> Work:
    grad = call["grad_output"]
    return products(call, grad.numel * call["weight"].shape[-1], bool(call.get("bias_defined")) * grad.numel)


@formula("aten::bilinear", category="matmul")
def bilinear(call: Call) -> Work:
    """x₁ᵀ W, then the product with x₂."""
    outputs, _, second = call["weight"].shape
    batch = rows(call["input1"])
    macs = batch * call["weight"].numel + batch * outputs * second
    return products(call, macs, _has_bias(call) * call.out.numel)


@formula("aten::_trilinear", category="matmul")
def trilinear(call: Call) -> Work:
    """Sums a product of three tensors: first i1 with i2 over what i3 does not have, then the result with i3."""
    rank = len(call["i1"].shape) + len(call["expand1"])
    sizes = [1] * rank
    for tensor, expanded in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        kept = [dim for dim in range(rank) if dim not in call[expanded]]
        for dim, size in zip(kept, call[tensor].shape, strict=True):
            sizes[dim] = max(sizes[dim], size)
    only_third = set(call["expand1"]) & set(call["expand2"])
    summed_first = set(call["sumdim"]) & set(call["expand3"])
    first = prod(size for dim, size in enumerate(sizes) if dim not in only_third)
    second = prod(size for dim, size in enumerate(sizes) if dim not in summed_first)
    return products(call, first + second)


def _linear_macs(call: Call) -> int:
    given = _input(call)
    weight = argument(call, "weight", "W", "w")
    if isinstance(weight, TensorSpec) and len(weight.shape) == 1:
        return int(given.numel)
    return int(given.numel * call.out.shape[-1])


def _input(call: Call) -> TensorSpec:
    spec: TensorSpec = argument(call, *_INPUT_NAMES)
    return spec


def _has_bias(call: Call) -> bool:
    return argument(call, "bias", "B") is not None
