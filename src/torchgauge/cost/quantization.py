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
        "quantize_per_tensor": QUANTIZE_FLOPS,
        "quantize_per_channel": QUANTIZE_FLOPS,
        "quantize_per_tensor_dynamic": QUANTIZE_FLOPS + 2,
        "dequantize": DEQUANTIZE_FLOPS,
        "quantized_decomposed::dequantize_per_tensor": DEQUANTIZE_FLOPS,
        "quantized_decomposed::dequantize_per_channel": DEQUANTIZE_FLOPS,
        "quantized_decomposed::dequantize_per_token": DEQUANTIZE_FLOPS,
        "torchao::dequantize_affine": DEQUANTIZE_FLOPS,
        "torchao::dequantize_affine_float8_non_decomposed": DEQUANTIZE_FLOPS,
        "fake_quantize_per_tensor_affine": FAKE_QUANTIZE_FLOPS,
        "fake_quantize_per_tensor_affine_cachemask": FAKE_QUANTIZE_FLOPS,
        "fake_quantize_per_channel_affine": FAKE_QUANTIZE_FLOPS,
        "fake_quantize_per_channel_affine_cachemask": FAKE_QUANTIZE_FLOPS,
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": FAKE_QUANTIZE_FLOPS,
        "_fake_quantize_learnable_per_tensor_affine": FAKE_QUANTIZE_FLOPS,
        "_fake_quantize_learnable_per_channel_affine": FAKE_QUANTIZE_FLOPS,
        "fake_quantize_per_tensor_affine_cachemask_backward": 1,
        "fake_quantize_per_channel_affine_cachemask_backward": 1,
        "quanto::unpack": 0,  # integers: shifts and masks
    },
)
per_input(
    "elementwise",
    {
        "quantized_decomposed::quantize_per_tensor": QUANTIZE_FLOPS,
        "quantized_decomposed::quantize_per_channel": QUANTIZE_FLOPS,
        "quantized_decomposed::quantize_per_token": QUANTIZE_FLOPS,
        "bitsandbytes::quantize_4bit": QUANTIZE_FLOPS,
        "bitsandbytes::quantize_blockwise": QUANTIZE_FLOPS,
        "bitsandbytes::int8_vectorwise_quant": QUANTIZE_FLOPS,
        "bitsandbytes::int8_double_quant": QUANTIZE_FLOPS,
        "torchao::quantize_affine": QUANTIZE_FLOPS,
        "torchao::quantize_affine_float8_non_decomposed": QUANTIZE_FLOPS,
        "quanto::quantize_affine": QUANTIZE_FLOPS,
        "quanto::quantize_symmetric": QUANTIZE_FLOPS,
        "_fake_quantize_learnable_per_tensor_affine_backward": 6,
        "_fake_quantize_learnable_per_channel_affine_backward": 6,
        "fused_moving_avg_obs_fake_quant": FAKE_QUANTIZE_FLOPS + 2,
        "_fused_moving_avg_obs_fq_helper": FAKE_QUANTIZE_FLOPS + 2,
        "_fused_moving_avg_obs_fq_helper_functional": FAKE_QUANTIZE_FLOPS + 2,
        "_choose_qparams_per_tensor": 2,
        "choose_qparams_optimized": 2,
        "_saturate_weight_to_fp16": 2,
    },
)
per_input(
    "reduction",
    {
        "quantized_decomposed::choose_qparams": 2,
        "quantized_decomposed::choose_qparams_symmetric": 2,
        "quantized_decomposed::choose_qparams_per_token": 2,
        "torchao::choose_qparams_affine": 2,
        "torchao::choose_scale_float8": 2,
    },
)
# The values are quantized already; they get their scale.
per_output("copy", {"_make_per_tensor_quantized_tensor": 0, "_make_per_channel_quantized_tensor": 0})
per_output(
    "elementwise",
    dict.fromkeys(
        (f"quantized::{name}" for name in (
            "add", "add_relu", "add_scalar", "add_scalar_relu", "mul", "mul_relu", "mul_scalar", "mul_scalar_relu",
            "clamp", "relu6", "leaky_relu", "elu", "celu", "hardswish", "sigmoid", "prelu", "threshold", "dropout",
        )),
        0,
    ),
)  # fmt: skip


@formula(
    "bitsandbytes::dequantize_4bit", "bitsandbytes::dequantize_blockwise", "bitsandbytes::int8_vectorwise_dequant",
    "bitsandbytes::int8_mm_dequant", category="elementwise",
)  # fmt: skip
def bitsandbytes_dequantize(call: Call) -> Work:
    """A table or an integer, times a scale; the result of a product has two scales and perhaps a bias."""
    out = call.out if call.outputs else call["out"]
    rate = 2 + (call.get("bias") is not None) if call.op.endswith("mm_dequant") else 1
    return arithmetic(call, rate * out.numel)
