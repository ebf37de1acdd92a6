"""Types that the matrices of layers are stored in, by the words of `weights_dtype`."""

from __future__ import annotations

from torchgauge.errors import UsageError

# Bits per weight as they are stored, scales and zero points included.
WEIGHT_BITS: dict[str, float] = {
    "fp32": 32, "bf16": 16, "fp16": 16, "int8": 8 + 16 / 4096,  # a scale for each row of some thousand weights
    "fp8": 8 + 32 / 128**2,  # a float32 scale for each block of 128 by 128, as DeepSeek V3 has it
    "int4": 4 + (16 + 4) / 128,  # groups of 128: a 16-bit scale and a 4-bit zero point, as GPTQ and AWQ store them
    "nf4": 4 + 8 / 64 + 32 / (64 * 256),  # bitsandbytes with its scales quantized again
    "mxfp4": 4 + 8 / 32, "nvfp4": 4 + 8 / 16,
}  # fmt: skip


def check_weights_dtype(asked: str | None) -> str | None:
    if asked is not None and asked not in WEIGHT_BITS:
        raise UsageError(f"no weights dtype '{asked}'; one of: {', '.join(WEIGHT_BITS)}")
    return asked


def is_quantized(name: str) -> bool:
    return WEIGHT_BITS[name] < 16
