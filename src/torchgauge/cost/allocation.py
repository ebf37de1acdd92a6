"""New tensors: memory that is only reserved is free; what is filled is written, not read.

Drawing random numbers is integer work, and the transformation to a distribution is not counted.
"""

from __future__ import annotations

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import total_bytes
from torchgauge.facts import FREE

_RESERVED = (
    "empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized", "new_empty", "new_empty_strided",
    "_empty_affine_quantized", "_empty_per_channel_affine_quantized", "_efficientzerotensor", "resize", "resize_as",
    "_resize_output",
)  # fmt: skip
_FILLED = (
    "zeros", "zeros_like", "new_zeros", "_new_zeros_with_same_feature_meta", "ones", "ones_like", "new_ones", "full",
    "full_like", "new_full", "zero", "eye", "arange", "range", "linspace", "logspace", "scalar_tensor", "tensor",
    "_dim_arange", "bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window",
    "fft_fftfreq", "fft_rfftfreq", "_cudnn_init_dropout_state",
)  # fmt: skip
_RANDOM = (
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "random", "uniform", "normal",
    "normal_functional", "exponential", "geometric", "cauchy", "log_normal", "_philox_normal", "_philox_uniform",
    "_philox_key_split", "_philox_key_fold_in", "_sobol_engine_draw",
)  # fmt: skip


@formula(*(f"aten::{name}" for name in _RESERVED), category="allocation", status=FREE)
def reserve(call: Call) -> Work:
    return Work(flops=0, bytes_read=0, bytes_written=0)


@formula(*(f"aten::{name}" for name in (*_FILLED, *_RANDOM)), category="allocation")
def fill(call: Call) -> Work:
    return Work(flops=0, bytes_read=0)


@formula("aten::fill", category="allocation")
def fill_value(call: Call) -> Work:
    return Work(flops=0, bytes_read=total_bytes(call.get("value")))
