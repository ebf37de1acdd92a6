"""Elementwise ops: one flop per element where nothing else is said here.

Choosing, copying and reinterpreting are not arithmetic: `where` and a cast have no flops. Comparisons have one.
"""

from __future__ import annotations

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import arithmetic, per_output, total_bytes

# The generic rate, spelled out because torch tags not every form of these ops as pointwise (`abs_`, `eq_`, …).
_ONE_FLOP = (
    "abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_left_shift",
    "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "clamp_max", "clamp_min", "copysign",
    "cos", "cosh", "deg2rad", "digamma", "div", "eq", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "float_power",
    "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "frexp", "gcd", "ge", "gt", "heaviside", "isfinite",
    "isinf", "isnan", "isneginf", "isposinf", "lcm", "ldexp", "le", "lgamma", "log", "log10", "log1p", "log2",
    "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "maximum", "minimum", "mul", "ne", "neg",
    "nextafter", "pow", "rad2deg", "reciprocal", "remainder", "round", "rsqrt", "sgn", "sign", "signbit", "sin",
    "sinh", "sqrt", "square", "tan", "true_divide", "trunc",
)  # fmt: skip

per_output("elementwise", dict.fromkeys(_ONE_FLOP, 1))
per_output(
    "elementwise",
    {
        "where": 0,
        "lerp": 3,  # a + w (b − a)
        "hypot": 4,
        "sinc": 3,  # sin(πx) / πx
        "xlogy": 2,
        "special_xlog1py": 3,
        "special_entr": 3,  # −x log x
        "logaddexp": 7,  # max + log(1 + exp(−|a − b|))
        "logaddexp2": 7,
        "nan_to_num": 3,  # three comparisons
        "logit_backward": 3,
        "polar": 4,  # cos, sin and two products
        "complex": 0,
        "linalg_cross": 3,  # two products and a difference
        "_add_relu": 2,
        "dist_backward": 4,
        "isin": 1,
        "native_dropout_backward": 2,
        "_masked_scale": 2,
        "_fill_mem_eff_dropout_mask": 1,
        "_dirichlet_grad": 1,
        "_standard_gamma": 1,
        "_standard_gamma_grad": 1,
        "_sample_dirichlet": 1,
        "poisson": 1,
        "binomial": 1,
    },
)


@formula("aten::add", "aten::sub", "aten::rsub", "aten::subtract", category="elementwise")
def add(call: Call) -> Work:
    return arithmetic(call, (1 + _scales(call.get("alpha", 1))) * call.out.numel)


@formula("aten::addcmul", "aten::addcdiv", category="elementwise")
def addcmul(call: Call) -> Work:
    return arithmetic(call, (2 + _scales(call.get("value", 1))) * call.out.numel)


@formula("aten::clamp", "aten::clip", category="elementwise")
def clamp(call: Call) -> Work:
    bounds = sum(call.get(name) is not None for name in ("min", "max"))
    return arithmetic(call, bounds * call.out.numel)


@formula("aten::logit", "aten::special_logit", category="elementwise")
def logit(call: Call) -> Work:
    """log(x / (1 − x)), x clamped to [eps, 1 − eps] where eps is given."""
    return arithmetic(call, (3 if call.get("eps") is None else 5) * call.out.numel)


@formula("aten::equal", category="elementwise")
def equal(call: Call) -> Work:
    """Compares whole tensors; its result is a bool, not a tensor."""
    return arithmetic(call, call["self"].numel)


@formula("aten::allclose", category="elementwise")
def allclose(call: Call) -> Work:
    """|a − b| ≤ atol + rtol · |b|; a bool too."""
    return arithmetic(call, 6 * call["self"].numel)


@formula(
    "aten::native_dropout", "aten::_fused_dropout", "aten::dropout", "aten::feature_dropout", "aten::alpha_dropout",
    "aten::feature_alpha_dropout", category="elementwise",
)  # fmt: skip
def dropout(call: Call) -> Work:
    """Compare a random number with p, apply the mask, scale; nothing outside of training."""
    is_training = call.get("train", True)
    return arithmetic(call, 3 * call.out.numel if is_training else 0)


@formula("aten::bernoulli", category="elementwise")
def bernoulli(call: Call) -> Work:
    """The comparison; drawing the number is integer work. With a probability given, `self` only lends its shape."""
    read = total_bytes(call["p"] if "p" in call.arguments else call["self"])
    return arithmetic(call, call.out.numel)._replace(bytes_read=read)


@formula("aten::multinomial", category="elementwise")
def multinomial(call: Call) -> Work:
    """Cumulative sum and division; the search in it is one comparison per sample and doubling."""
    weights = call["self"]
    return arithmetic(call, 2 * weights.numel + call.out.numel * max(weights.shape[-1] - 1, 0).bit_length())


def _scales(factor: object) -> bool:
    """Whether a factor is there to be multiplied with; it may be a list, one per tensor."""
    return factor != 1
