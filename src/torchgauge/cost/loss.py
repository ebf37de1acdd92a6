"""Losses: flops per element of the textbook form; a reduction adds one per element, a mean one more.

Of `nll_loss` only the log-probability of each target is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import argument, arithmetic, extent, products, qualified, total_bytes
from torchgauge.facts import TensorSpec

_NONE, _MEAN = 0, 1


class LossRate(NamedTuple):
    """`backward` is None if the gradient is not a separate op."""

    forward: int
    backward: int | None = None


_ELEMENTWISE: Mapping[str, LossRate] = {
    "mse_loss": LossRate(2, 3),  # (x − y)²; 2 (x − y) g
    "l1_loss": LossRate(2),
    "smooth_l1_loss": LossRate(6, 5),  # |x − y|, compare, z² / 2β
    "huber_loss": LossRate(5, 5),  # |x − y|, compare, z² / 2
    "binary_cross_entropy": LossRate(8, 6),  # −(y log x + (1 − y) log(1 − x)); (x − y) / (x (1 − x)) g
    "binary_cross_entropy_with_logits": LossRate(10),  # (1 − y) x + max(−x, 0) + log(1 + exp(−|x|))
    "soft_margin_loss": LossRate(4, 6),  # log(1 + exp(−y x))
    "kl_div": LossRate(3),  # y (log y − x)
    "poisson_nll_loss": LossRate(3),  # exp(x) − y x
}
# Per element: margin − x[target] + x, maximum with 0, sum; a weight or power is left out.
_MARGIN_FLOPS = 4
# CTC: how often the recursion over the alignment runs, and the flops per log-probability for its gradient (exp, sum,
# difference). A step of the recursion at a label is a log-sum-exp of three paths (12) and the new log-probability.
_CTC_STEP_FLOPS = 13
_CTC: Mapping[str, tuple[int, int]] = {
    "_ctc_loss": (1, 0),
    "ctc_loss": (1, 0),
    "_ctc_loss_backward": (1, 3),  # the same recursion from the end
    "_cudnn_ctc_loss": (2, 3),  # loss and gradient at once
    "miopen_ctc_loss": (2, 3),
}


for _name, _rate in _ELEMENTWISE.items():

    @formula(f"aten::{_name}", category="loss")
    def forward(call: Call, rate: int = _rate.forward) -> Work:
        return _reduced(call, argument(call, "self", "input").numel, rate + _weights(call))

    if _rate.backward is not None:

        @formula(f"aten::{_name}_backward", category="loss")
        def backward(call: Call, rate: int = _rate.backward) -> Work:
            return arithmetic(call, (rate + _weights(call)) * call["self"].numel)


@formula(
    "aten::nll_loss", "aten::nll_loss_nd", "aten::nll_loss2d", "aten::nll_loss_forward", "aten::nll_loss2d_forward",
    category="loss",
)  # fmt: skip
def nll_loss(call: Call) -> Work:
    scores, target, weight = call["self"], call["target"], call.get("weight")
    read = target.distinct_bytes + target.numel * scores.itemsize + total_bytes(weight)
    return _reduced(call, target.numel, 1 + _weights(call))._replace(bytes_read=read)


@formula("aten::nll_loss_backward", "aten::nll_loss2d_backward", category="loss")
def nll_loss_backward(call: Call) -> Work:
    """One value per target goes into a gradient full of zeros; the scores only lend their shape."""
    target = call["target"]
    read = total_bytes([call["grad_output"], target, call.get("weight"), call.get("total_weight")])
    return arithmetic(call, (1 + _weights(call)) * target.numel)._replace(bytes_read=read)


@formula("aten::cross_entropy_loss", category="loss")
def cross_entropy(call: Call) -> Work:
    """A log-softmax over the classes (5 per score), then the loss of each target."""
    scores, target = call["self"], call["target"]
    return arithmetic(call, 5 * scores.numel + 2 * target.numel)


@formula(
    "torch_nn::_linear_cross_entropy_batch_chunked", "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
    category="loss",
)  # fmt: skip
def linear_cross_entropy(call: Call) -> Work:
    """The last linear layer and its loss by chunks; the gradients are computed at once, one product each."""
    x, weight, target = call["input"], call["linear_weight"], call["target"]
    classes = weight.shape[0]
    gradients = sum(bool(call.get(f"compute_{name}_grad")) for name in ("input", "linear_weight"))
    scores = x.numel // max(x.shape[-1], 1) * classes
    per_score = 5 + (call.get("linear_bias") is not None) + 2 * bool(gradients)
    return products(call, (1 + gradients) * x.numel * classes, per_score * scores + 2 * target.numel)


@formula("aten::multi_margin_loss", "aten::multi_margin_loss_backward", category="loss")
def multi_margin(call: Call) -> Work:
    return arithmetic(call, _MARGIN_FLOPS * call["self"].numel)


@formula(
    "aten::multilabel_margin_loss", "aten::multilabel_margin_loss_forward", "aten::multilabel_margin_loss_backward",
    category="loss",
)  # fmt: skip
def multilabel_margin(call: Call) -> Work:
    """Every class against every other, at most."""
    scores = call["self"]
    return arithmetic(call, _MARGIN_FLOPS * scores.numel * extent(scores, -1))


@formula(*qualified(*_CTC), category="loss")
def ctc_loss(call: Call) -> Work:
    """The alignment has one place per step and label, with blanks between and around the labels, over the batch."""
    passes, gradient_flops = _CTC[call.op.removeprefix("aten::")]
    log_probs: TensorSpec = call["log_probs"]
    steps, batch = log_probs.shape[0], log_probs.shape[1] if len(log_probs.shape) == 3 else 1
    lengths = call.get("target_lengths")
    if isinstance(lengths, list | tuple) and all(isinstance(length, int) for length in lengths):
        labels = sum(lengths)
    else:
        labels = call["targets"].numel
    alignment = steps * (2 * labels + batch)
    return arithmetic(call, passes * _CTC_STEP_FLOPS * alignment + gradient_flops * log_probs.numel)


def _reduced(call: Call, elements: int, rate: int) -> Work:
    reduction = call.get("reduction", _MEAN)
    total = elements * (rate + (reduction != _NONE)) + (reduction == _MEAN)
    return arithmetic(call, total)


def _weights(call: Call) -> int:
    return sum(call.get(name) is not None for name in ("weight", "pos_weight"))
