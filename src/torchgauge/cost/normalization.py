"""Normalization, counted as the textbook writes it: (x − mean) · rstd · weight + bias.

    per element                              per group of statistics
    4 normalise (2 without weight and bias)  2 (add eps, rsqrt)
    4 statistics: sum, x − mean, square, sum 2 (two divisions)
    RMS norm: 2 statistics, 1 scale, 1 weight    3 (division, add eps, rsqrt)

Evaluation of a batch norm uses stored statistics; training adds its own and their running means (6 per channel).
Gradients: 10 per element for the input (2 where the statistics are constants), 2 for the weight (4 then: x̂ was
not kept), 1 for the bias; of an RMS norm 7 and 2.
"""

from __future__ import annotations

from math import prod

from torchgauge.cost.registry import Call, Work, formula, written_bytes
from torchgauge.cost.work import argument, arithmetic, extent, per_input, per_output, total_bytes
from torchgauge.facts import TensorSpec

STATISTICS_FLOPS = 4
_GROUP_FLOPS = 4
_STORED_GROUP_FLOPS = 2
_RUNNING_FLOPS = 6
_ALWAYS_TRAINING = ("aten::_batch_norm_with_update", "aten::_batch_norm_with_update_functional")


@formula(
    "aten::batch_norm", "aten::native_batch_norm", "aten::_batch_norm_impl_index", "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit_functional", "aten::_native_batch_norm_legit_no_training",
    "aten::_batch_norm_no_update", "aten::cudnn_batch_norm", "aten::miopen_batch_norm", *_ALWAYS_TRAINING,
    category="normalization",
)  # fmt: skip
def batch_norm(call: Call) -> Work:
    x = call["input"]
    channels = x.shape[1]
    if not (call.get("training") or call.op in _ALWAYS_TRAINING):
        return arithmetic(call, _scale_flops(call) * x.numel + _STORED_GROUP_FLOPS * channels)
    running = [call.get("running_mean"), call.get("running_var")]
    flops = (_scale_flops(call) + STATISTICS_FLOPS) * x.numel + _GROUP_FLOPS * channels
    updated = sum(spec is not None for spec in running)
    work = arithmetic(call, flops + updated * _RUNNING_FLOPS // 2 * channels)
    is_functional = call.op.endswith("_functional")
    return work._replace(bytes_written=written_bytes(call) + (0 if is_functional else total_bytes(running)))


@formula("aten::instance_norm", category="normalization")
def instance_norm(call: Call) -> Work:
    x = call["input"]
    if not call.get("use_input_stats", True):
        return arithmetic(call, _scale_flops(call) * x.numel + _STORED_GROUP_FLOPS * x.shape[1])
    return _normalise(call, x, groups=x.shape[0] * x.shape[1])


@formula("aten::layer_norm", "aten::native_layer_norm", category="normalization")
def layer_norm(call: Call) -> Work:
    return _normalise(call, call["input"], groups=_rows(call))


@formula("aten::group_norm", "aten::native_group_norm", category="normalization")
def group_norm(call: Call) -> Work:
    x = call["input"]
    return _normalise(call, x, groups=x.shape[0] * argument(call, "group", "num_groups"))


@formula("aten::rms_norm", "aten::_fused_rms_norm", category="normalization")
def rms_norm(call: Call) -> Work:
    per_element = 3 + (call.get("weight") is not None)
    return arithmetic(call, per_element * call["input"].numel + 3 * _rows(call))


@formula("aten::_weight_norm", "aten::_weight_norm_interface", category="normalization")
def weight_norm(call: Call) -> Work:
    """g · v / ‖v‖: square, sum, multiply; a root and a division per row."""
    return arithmetic(call, 3 * call["v"].numel + 2 * call["g"].numel)


@formula(
    "aten::native_batch_norm_backward", "aten::batch_norm_backward", "aten::cudnn_batch_norm_backward",
    "aten::miopen_batch_norm_backward", "aten::_batch_norm_impl_index_backward", "aten::native_layer_norm_backward",
    "aten::native_group_norm_backward", category="normalization",
)  # fmt: skip
def norm_backward(call: Call) -> Work:
    to_input, to_weight, to_bias = map(bool, call.get("output_mask", (True, True, True)))
    # Only a batch norm outside of training has constant statistics. cuDNN's and MIOpen's have no flag: they are for
    # training.
    if argument(call, "train", "update") is False:
        per_element = 2 * to_input + 4 * to_weight + to_bias
    else:
        per_element = 10 * to_input + 2 * to_weight + to_bias
    return arithmetic(call, per_element * call["input"].numel)


@formula("aten::_fused_rms_norm_backward", category="normalization")
def rms_norm_backward(call: Call) -> Work:
    to_input, to_weight = call["output_mask"]
    return arithmetic(call, (7 * bool(to_input) + 2 * bool(to_weight)) * call["input"].numel)


@formula(
    "aten::_weight_norm_interface_backward", "aten::_weight_norm_differentiable_backward", category="normalization"
)
def weight_norm_backward(call: Call) -> Work:
    """Per element the sum of grad · v (2) and g/‖v‖ · (grad − v · sum/‖v‖²) (3); 4 per row."""
    return arithmetic(call, 5 * call["saved_v"].numel + 4 * call["saved_g"].numel)


# The pieces of a batch norm synchronised between devices.
per_input(
    "normalization",
    {
        "batch_norm_stats batch_norm_update_stats": STATISTICS_FLOPS,
        "batch_norm_elemt batch_norm_backward_reduce renorm": 4,
        "batch_norm_backward_elemt": 6,
    },
)


@formula("aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts", category="normalization")
def gather_statistics(call: Call) -> Work:
    """One mean and variance per device and channel, joined."""
    work = arithmetic(call, 8 * call["mean"].numel)
    # The large input is only asked for its type.
    return work._replace(bytes_read=total_bytes([call["mean"], call["invstd"], call.get("counts")]))


def _normalise(call: Call, x: TensorSpec, groups: int) -> Work:
    return arithmetic(call, (STATISTICS_FLOPS + _scale_flops(call)) * x.numel + _GROUP_FLOPS * groups)


def _scale_flops(call: Call) -> int:
    return 2 + (call.get("weight") is not None) + (call.get("bias") is not None)


def _rows(call: Call) -> int:
    size = prod(call["normalized_shape"])
    return int(call["input"].numel // size) if size else 0


# Softmax and related ops over n elements: maximum, subtraction, exp, sum, division: 5 n. log_softmax takes the
# logarithm of the sum once per row and subtracts it: 5 n + 1 per row. logsumexp: 4 n + 2 per row. Gradients: y (g − Σ g
# y) and g − exp(y) Σ g, 4 n each.

_SOFTMAX = (
    "softmax _softmax special_softmax _safe_softmax _masked_softmax _nested_tensor_softmax_with_shape _sparse_softmax"
)
per_output("softmax", {_SOFTMAX: 5})
_SOFTMAX_BACKWARD = (
    "_softmax_backward_data _masked_softmax_backward _log_softmax_backward_data _sparse_softmax_backward_data "
    "_sparse_log_softmax_backward_data"
)
per_input("softmax", {_SOFTMAX_BACKWARD: 4})


@formula(
    "aten::log_softmax", "aten::_log_softmax", "aten::special_log_softmax", "aten::_sparse_log_softmax",
    category="softmax",
)  # fmt: skip
def log_softmax(call: Call) -> Work:
    x = call["self"]
    row_count = x.numel // max(extent(x, call["dim"]), 1)
    return arithmetic(call, 5 * x.numel + row_count)


@formula("aten::logsumexp", "aten::special_logsumexp", category="softmax")
def logsumexp(call: Call) -> Work:
    return arithmetic(call, 4 * call["self"].numel + 2 * call.out.numel)
