"""Elementwise ops: one flop per element unless listed otherwise.

Choosing, copying and reinterpreting are not arithmetic: `where` and a cast have no flops. Comparisons have one.
"""

from __future__ import annotations

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import arithmetic, per_input, per_output, total_bytes

# The generic rate. They are listed because torch does not tag every form of these ops as pointwise (`abs_`, `eq_`, …).
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

per_output(
    "elementwise",
    {
        " ".join(_ONE_FLOP): 1,
        "where complex": 0,
        "lerp": 3,  # a + w (b − a)
        "hypot": 4,
        "sinc": 3,  # sin(πx) / πx
        "xlogy": 2,
        "special_xlog1py": 3,
        "special_entr": 3,  # −x log x
        "logaddexp logaddexp2": 7,  # max + log(1 + exp(−|a − b|))
        "nan_to_num": 3,  # three comparisons
        "logit_backward": 3,
        "polar": 4,  # cos, sin and two products
        "linalg_cross": 3,  # two products and a difference
        "_add_relu native_dropout_backward _masked_scale": 2,
        "dist_backward": 4,
        "isin _fill_mem_eff_dropout_mask _dirichlet_grad _standard_gamma _standard_gamma_grad _sample_dirichlet "
        "poisson binomial": 1,
    },
)
# These compare whole tensors: the result is a Python bool.
per_input("elementwise", {"equal": 1, "allclose": 6})  # |a − b| ≤ atol + rtol · |b|


@formula("aten::add", "aten::sub", "aten::rsub", "aten::subtract", category="elementwise")
def add(call: Call) -> Work:
    is_scaled = call.get("alpha", 1) != 1  # a list if there is one per tensor
    return arithmetic(call, (1 + is_scaled) * call.out.numel)


@formula("aten::addcmul", "aten::addcdiv", category="elementwise")
def addcmul(call: Call) -> Work:
    is_scaled = call.get("value", 1) != 1
    return arithmetic(call, (2 + is_scaled) * call.out.numel)


@formula("aten::clamp", "aten::clip", category="elementwise")
def clamp(call: Call) -> Work:
    bounds = sum(call.get(name) is not None for name in ("min", "max"))
    return arithmetic(call, bounds * call.out.numel)


@formula("aten::logit", "aten::special_logit", category="elementwise")
def logit(call: Call) -> Work:
    """log(x / (1 − x)), x clamped to [eps, 1 − eps] where eps is given."""
    return arithmetic(call, (3 if call.get("eps") is None else 5) * call.out.numel)


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


# Activations: flops per element of the textbook form. tanh, exp, log and erf are elementary (1). A sigmoid is 1 / (1 +
# exp(−x)): 4. A choice between two values is the comparison (1), and the branch that computes more.

SIGMOID_FLOPS = 4

per_output(
    "activation",
    {
        "relu threshold tanh": 1,
        "relu6 hardtanh": 2,  # two bounds
        "leaky_relu prelu _prelu_kernel rrelu rrelu_with_noise rrelu_with_noise_functional": 2,  # compare, multiply
        "elu": 4,  # compare; a (exp(x) − 1)
        "celu": 5,  # compare; a (exp(x / a) − 1)
        "selu": 5,  # an ELU, scaled
        "sigmoid special_expit": SIGMOID_FLOPS,
        "silu": SIGMOID_FLOPS + 1,
        "mish": 5,  # x tanh(log(1 + exp(x)))
        "softplus": 5,  # log(1 + exp(β x)) / β
        "log_sigmoid log_sigmoid_forward": 5,  # −log(1 + exp(−x))
        "hardsigmoid": 4,  # min(max(x + 3, 0), 6) / 6
        "hardswish": 5,
        "hardshrink": 2,  # |x| > λ
        "softshrink": 3,  # two comparisons, x ± λ
        "glu": SIGMOID_FLOPS + 1,  # per output, half the input
        "glu_jvp": 9,
        "threshold_backward rrelu_with_noise_backward": 1,
        "hardtanh_backward leaky_relu_backward hardshrink_backward softshrink_backward": 2,
        "_prelu_kernel_backward hardsigmoid_backward": 3,
        "elu_backward": 4,
        "sigmoid_backward": 3,  # g (1 − y) y
        "tanh_backward": 3,  # g (1 − y²)
        "silu_backward": 9,  # s = sigmoid(x); g s (1 + x (1 − s))
        "mish_backward": 14,
        "softplus_backward hardswish_backward": 5,
        "log_sigmoid_backward": SIGMOID_FLOPS + 2,
    },
)

# s = sigmoid(b); both halves of the gradient, per element of the gradient that comes in.
per_input("activation", {"glu_backward": 9, "glu_backward_jvp": 18})


@formula(
    "aten::gelu", "aten::gelu_backward", "aten::infinitely_differentiable_gelu_backward", category="activation"
)  # fmt: skip
def gelu(call: Call) -> Work:
    """x/2 · (1 + erf(x/√2)), or 1 + tanh(√(2/π) · (x + 0.044715 x³)) in its place; and their gradients."""
    exact, by_tanh = (11, 18) if call.op.endswith("backward") else (5, 9)
    return arithmetic(call, (by_tanh if call.get("approximate") == "tanh" else exact) * call.out.numel)
