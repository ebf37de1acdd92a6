"""Fused optimiser steps, flops per parameter element:

    Adam, AdamW   13: m ← β₁m + (1−β₁)g (3), v ← β₂v + (1−β₂)g² (4), √v/c + ε (3), p − s·m/d (3)
                  weight decay 2 (in the gradient) or 1 (AdamW, in the parameter), AMSGrad 1
    SGD           2: p − lr·g; weight decay 2, momentum 2 (3 with dampening), Nesterov 2
    Adagrad       7: s ← s + g² (2), √s + ε (2), p − lr·g/s (3); weight decay 2

and 1 each for maximising and for unscaling the gradient. The gradients are read, and written only when unscaled.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchgauge.cost.registry import Call, Work, formula, written_bytes
from torchgauge.cost.work import is_in_place, total_bytes, total_numel


@formula("aten::_fused_adam", category="elementwise")
def adam(call: Call) -> Work:
    return _step(call, 13 + 2 * _decays(call) + bool(call["amsgrad"]), _moments(call))


@formula("aten::_fused_adamw", category="elementwise")
def adamw(call: Call) -> Work:
    return _step(call, 13 + _decays(call) + bool(call["amsgrad"]), _moments(call))


@formula("aten::_fused_adagrad", category="elementwise")
def adagrad(call: Call) -> Work:
    return _step(call, 7 + 2 * _decays(call), ("self", "state_sums"))


@formula("aten::_fused_sgd", category="elementwise")
def sgd(call: Call) -> Work:
    rate = 2 + 2 * _decays(call)
    written = ["self"]
    if call.get("momentum", 0):
        rate += 2 + bool(call.get("dampening", 0)) + 2 * bool(call.get("nesterov"))
        written.append("momentum_buffer_list")
    return _step(call, rate, written)


@formula("aten::_amp_update_scale", category="other")
def update_loss_scale(call: Call) -> Work:
    return Work(flops=1)


def _step(call: Call, rate: int, written: Sequence[str]) -> Work:
    unscales = call.get("grad_scale") is not None
    rate += bool(call.get("maximize")) + unscales
    names = [*written, "grads"] if unscales else written
    in_place = sum(total_bytes(call.get(name)) for name in names)
    return Work(
        flops=rate * total_numel(call["self"]),
        bytes_written=in_place if is_in_place(call) else written_bytes(call),
    )


def _moments(call: Call) -> tuple[str, ...]:
    moments = ("self", "exp_avgs", "exp_avg_sqs")
    return (*moments, "max_exp_avg_sqs") if call["amsgrad"] else moments


def _decays(call: Call) -> bool:
    return bool(call.get("weight_decay", 0))
