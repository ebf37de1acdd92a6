"""Conversions between floating and quantized numbers, in flops per element.

x / scale, round, + zero point, two bounds: 5. Back, (q − zero point) · scale: 2. A fake quantization does both: 7.
Choosing the range looks for both extremes: 2. Ops on quantized numbers are integer work.
"""

from __future__ import annotations

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import arithmetic, per_input, per_output

QUANTIZE_FLOPS, DEQUANTIZE_FLOPS = 5, 2
FAKE_QUANTIZE_FLOPS = QUANTIZE_FLOPS + DEQUANTIZE_FLOPS

per_output(
    "elementwise",
    {
        "quantize_per_tensor quantize_per_channel": QUANTIZE_FLOPS,
        "quantize_per_tensor_dynamic": QUANTIZE_FLOPS + 2,
        "dequantize quantized_decomposed::dequantize_per_tensor quantized_decomposed::dequantize_per_channel "
        "quantized_decomposed::dequantize_per_token torchao::dequantize_affine "
        "torchao::dequantize_affine_float8_non_decomposed": DEQUANTIZE_FLOPS,
        "fake_quantize_per_tensor_affine fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine "
        "fake_quantize_per_channel_affine_cachemask _fake_quantize_per_tensor_affine_cachemask_tensor_qparams "
        "_fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_channel_affine": FAKE_QUANTIZE_FLOPS,
        "fake_quantize_per_tensor_affine_cachemask_backward fake_quantize_per_channel_affine_cachemask_backward": 1,
        "quanto::unpack": 0,  # integers: shifts and masks
    },
)
per_input(
    "elementwise",
    {
        "quantized_decomposed::quantize_per_tensor quantized_decomposed::quantize_per_channel "
        "quantized_decomposed::quantize_per_token bitsandbytes::quantize_4bit bitsandbytes::quantize_blockwise "
        "bitsandbytes::int8_vectorwise_quant bitsandbytes::int8_double_quant torchao::quantize_affine "
        "torchao::quantize_affine_float8_non_decomposed quanto::quantize_affine "
        "quanto::quantize_symmetric": QUANTIZE_FLOPS,
        "_fake_quantize_learnable_per_tensor_affine_backward _fake_quantize_learnable_per_channel_affine_backward": 6,
        "fused_moving_avg_obs_fake_quant _fused_moving_avg_obs_fq_helper "
        "_fused_moving_avg_obs_fq_helper_functional": FAKE_QUANTIZE_FLOPS + 2,
        "_choose_qparams_per_tensor choose_qparams_optimized _saturate_weight_to_fp16": 2,
    },
)
per_input(
    "reduction",
    {
        "quantized_decomposed::choose_qparams quantized_decomposed::choose_qparams_symmetric "
        "quantized_decomposed::choose_qparams_per_token torchao::choose_qparams_affine torchao::choose_scale_float8": 2
    },
)
# The values are quantized already; they get their scale.
per_output("copy", {"_make_per_tensor_quantized_tensor _make_per_channel_quantized_tensor": 0})
_INTEGER_OPS = (
    "add", "add_relu", "add_scalar", "add_scalar_relu", "mul", "mul_relu", "mul_scalar", "mul_scalar_relu", "clamp",
    "relu6", "leaky_relu", "elu", "celu", "hardswish", "sigmoid", "prelu", "threshold", "dropout",
)  # fmt: skip
per_output("elementwise", {f"quantized::{name}": 0 for name in _INTEGER_OPS})


@formula(
    "bitsandbytes::dequantize_4bit", "bitsandbytes::dequantize_blockwise", "bitsandbytes::int8_vectorwise_dequant",
    "bitsandbytes::int8_mm_dequant", category="elementwise",
)  # fmt: skip
def bitsandbytes_dequantize(call: Call) -> Work:
    """A table or an integer, times a scale; the result of a product has two scales and perhaps a bias."""
    out = call.out if call.outputs else call["out"]
    rate = 2 + (call.get("bias") is not None) if call.op.endswith("mm_dequant") else 1
    return arithmetic(call, rate * out.numel)
