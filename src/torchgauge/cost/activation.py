"""Activations: flops per element of the textbook form.

tanh, exp, log and erf are elementary (1). A sigmoid is 1 / (1 + exp(−x)): 4. A choice between two values is the
comparison (1), and the branch that computes more.
"""

from __future__ import annotations

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import arithmetic, per_input, per_output

SIGMOID_FLOPS = 4

per_output(
    "activation",
    {
        "relu": 1,
        "relu6": 2,  # two bounds
        "hardtanh": 2,
        "threshold": 1,
        "leaky_relu": 2,  # compare, multiply
        "prelu": 2,
        "_prelu_kernel": 2,
        "rrelu": 2,
        "rrelu_with_noise": 2,
        "rrelu_with_noise_functional": 2,
        "elu": 4,  # compare; a (exp(x) − 1)
        "celu": 5,  # compare; a (exp(x / a) − 1)
        "selu": 5,  # an ELU, scaled
        "sigmoid": SIGMOID_FLOPS,
        "special_expit": SIGMOID_FLOPS,
        "tanh": 1,
        "silu": SIGMOID_FLOPS + 1,
        "mish": 5,  # x tanh(log(1 + exp(x)))
        "softplus": 5,  # log(1 + exp(β x)) / β
        "log_sigmoid": 5,  # −log(1 + exp(−x))
        "log_sigmoid_forward": 5,
        "hardsigmoid": 4,  # min(max(x + 3, 0), 6) / 6
        "hardswish": 5,
        "hardshrink": 2,  # |x| > λ
        "softshrink": 3,  # two comparisons, x ± λ
        "glu": SIGMOID_FLOPS + 1,  # per output, half the input
        "glu_jvp": 9,
    },
)

per_output(
    "activation",
    {
        "threshold_backward": 1,
        "hardtanh_backward": 2,
        "leaky_relu_backward": 2,
        "_prelu_kernel_backward": 3,
        "rrelu_with_noise_backward": 1,
        "elu_backward": 4,
        "sigmoid_backward": 3,  # g (1 − y) y
        "tanh_backward": 3,  # g (1 − y²)
        "silu_backward": 9,  # s = sigmoid(x); g s (1 + x (1 − s))
        "mish_backward": 14,
        "softplus_backward": 5,
        "log_sigmoid_backward": SIGMOID_FLOPS + 2,
        "hardsigmoid_backward": 3,
        "hardswish_backward": 5,
        "hardshrink_backward": 2,
        "softshrink_backward": 2,
    },
)

# s = sigmoid(b); both halves of the gradient, per element of the gradient that comes in.
per_input("activation", {"glu_backward": 9, "glu_backward_jvp": 18})


@formula("aten::gelu", category="activation")
def gelu(call: Call) -> Work:
    """x/2 · (1 + erf(x/√2)), or 1 + tanh(√(2/π) · (x + 0.044715 x³)) in its place."""
    return arithmetic(call, (9 if _is_tanh_form(call) else 5) * call.out.numel)


@formula("aten::gelu_backward", "aten::infinitely_differentiable_gelu_backward", category="activation")
def gelu_backward(call: Call) -> Work:
    return arithmetic(call, (18 if _is_tanh_form(call) else 11) * call.out.numel)


def _is_tanh_form(call: Call) -> bool:
    return bool(call.get("approximate") == "tanh")
