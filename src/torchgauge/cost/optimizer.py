"""Fused optimizer steps, flops per parameter element:

    Adam, AdamW   13: m ← β₁m + (1−β₁)g (3), v ← β₂v + (1−β₂)g² (4), √v/c + ε (3), p − s·m/d (3)
                  weight decay 2 (in the gradient) or 1 (AdamW, in the parameter), AMSGrad 1
    SGD           2: p − lr·g; weight decay 2, momentum 2 (3 with dampening), Nesterov 2
    Adagrad       7: s ← s + g² (2), √s + ε (2), p − lr·g/s (3); weight decay 2

and 1 each for maximising and for unscaling the gradient. The gradients are read, and written only when unscaled.
"""

from __future__ import annotations

from torchgauge.cost.reduction import norm_flops
from torchgauge.cost.registry import Call, Work, formula, written_bytes
from torchgauge.cost.work import arithmetic, is_in_place, products, total_bytes, total_numel
from torchgauge.facts import tensor_specs


@formula("aten::_fused_adam", "aten::_fused_adamw", category="elementwise")
def adam(call: Call) -> Work:
    written = ["self", "exp_avgs", "exp_avg_sqs"]
    if call["amsgrad"]:
        written.append("max_exp_avg_sqs")
    decay_flops = 1 if call.op.startswith("aten::_fused_adamw") else 2
    return _step(call, 13 + bool(call["amsgrad"]), written, decay_flops)


@formula("aten::_fused_adagrad", category="elementwise")
def adagrad(call: Call) -> Work:
    return _step(call, 7, ["self", "state_sums"])


@formula("aten::_fused_sgd", category="elementwise")
def sgd(call: Call) -> Work:
    rate = 2
    written = ["self"]
    if call.get("momentum", 0):
        rate += 2 + bool(call.get("dampening", 0)) + 2 * bool(call.get("nesterov"))
        written.append("momentum_buffer_list")
    return _step(call, rate, written)


@formula("aten::_amp_update_scale", category="other")
def update_loss_scale(call: Call) -> Work:
    return Work(flops=1)


def _step(call: Call, rate: int, written: list[str], decay_flops: int = 2) -> Work:
    unscales = call.get("grad_scale") is not None
    rate += bool(call.get("maximize")) + unscales + decay_flops * bool(call.get("weight_decay", 0))
    names = [*written, "grads"] if unscales else written
    in_place = sum(total_bytes(call.get(name)) for name in names)
    return Work(
        flops=rate * total_numel(call["self"]), bytes_written=in_place if is_in_place(call) else written_bytes(call)
    )


# The `_foreach_` ops: one op over lists of tensors. In place they return nothing, but write their first list.

_ONE_FLOP = (
    "abs", "acos", "add", "asin", "atan", "ceil", "clamp_max", "clamp_min", "cos", "cosh", "div", "erf", "erfc", "exp",
    "expm1", "floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "maximum", "minimum", "mul", "neg", "pow",
    "reciprocal", "round", "rsqrt", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "trunc",
)  # fmt: skip
_RATES = {**dict.fromkeys(_ONE_FLOP, 1), "sigmoid": 4, "lerp": 3, "max": 1, "clone": 0}


for _name, _rate in _RATES.items():

    @formula(f"aten::_foreach_{_name}", category={"clone": "copy", "max": "reduction"}.get(_name, "elementwise"))
    def foreach(call: Call, rate: int = _rate) -> Work:
        is_scaled = call.get("alpha", 1) != 1
        return _over_lists(call, rate + is_scaled)


@formula("aten::_foreach_addcmul", "aten::_foreach_addcdiv", category="elementwise")
def foreach_addcmul(call: Call) -> Work:
    is_scaled = call.get("scalars") is not None or call.get("value", 1) != 1
    return _over_lists(call, 2 + is_scaled)


@formula("aten::_foreach_norm", "aten::_foreach_powsum", category="reduction")
def foreach_norm(call: Call) -> Work:
    tensors = list(tensor_specs(call["self"]))
    return arithmetic(call, norm_flops(total_numel(tensors), len(tensors), call.get("ord", 2)))


@formula("aten::_foreach_mm", category="matmul")
def foreach_mm(call: Call) -> Work:
    pairs = zip(tensor_specs(call["self"]), tensor_specs(call["mat2"]), strict=True)
    macs = sum(left.numel * right.shape[-1] for left, right in pairs)
    return products(call, macs)


@formula("aten::_foreach_copy", category="copy")
def foreach_copy(call: Call) -> Work:
    return Work(flops=0, bytes_read=total_bytes(call["src"]), bytes_written=_written(call))


@formula("aten::_foreach_zero", category="allocation")
def foreach_zero(call: Call) -> Work:
    return Work(flops=0, bytes_read=0, bytes_written=_written(call))


@formula("aten::_amp_foreach_non_finite_check_and_unscale", category="elementwise")
def check_and_unscale(call: Call) -> Work:
    """A test and a product per element."""
    return _over_lists(call, 2)


def _over_lists(call: Call, rate: int) -> Work:
    tensors = call["self"]
    # `_foreach_pow` also takes a number to the power of each tensor.
    elements = total_numel(tensors) or total_numel(call.get("exponent"))
    return arithmetic(call, rate * elements)._replace(bytes_written=_written(call))


def _written(call: Call) -> int:
    return total_bytes(call["self"]) if is_in_place(call) else written_bytes(call)
