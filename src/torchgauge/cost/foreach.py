"""The `_foreach_` ops: one op over lists of tensors. In place they return nothing, but write their first list."""

from __future__ import annotations

from torchgauge.cost.reduction import norm_flops
from torchgauge.cost.registry import Call, Work, formula, written_bytes
from torchgauge.cost.work import arithmetic, is_in_place, products, total_bytes, total_numel
from torchgauge.facts import tensor_specs

_ONE_FLOP = (
    "abs", "acos", "add", "asin", "atan", "ceil", "clamp_max", "clamp_min", "cos", "cosh", "div", "erf", "erfc", "exp",
    "expm1", "floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "maximum", "minimum", "mul", "neg", "pow",
    "reciprocal", "round", "rsqrt", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "trunc",
)  # fmt: skip
_RATES = {**dict.fromkeys(_ONE_FLOP, 1), "sigmoid": 4, "lerp": 3, "max": 1, "clone": 0}


def _register(name: str, rate: int) -> None:
    category = "copy" if name == "clone" else "reduction" if name == "max" else "elementwise"

    @formula(f"aten::_foreach_{name}", category=category)
    def foreach(call: Call) -> Work:
        scaled = call.get("alpha", 1) != 1
        return _over_lists(call, rate + scaled)


for _name, _rate in _RATES.items():
    _register(_name, _rate)


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
