"""Softmax and its kin over n elements: maximum, subtraction, exp, sum, division: 5 n.

log_softmax takes the logarithm of the sum once per row and subtracts it: 5 n + 1 per row. logsumexp: 4 n + 2 per row.
Gradients: y (g − Σ g y) and g − exp(y) Σ g, 4 n each.
"""

from __future__ import annotations

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import arithmetic, extent, per_input, per_output

per_output(
    "softmax",
    {
        "softmax": 5,
        "_softmax": 5,
        "special_softmax": 5,
        "_safe_softmax": 5,
        "_masked_softmax": 5,
        "_nested_tensor_softmax_with_shape": 5,
        "_sparse_softmax": 5,
    },
)
per_input(
    "softmax",
    {
        "_softmax_backward_data": 4,
        "_masked_softmax_backward": 4,
        "_log_softmax_backward_data": 4,
        "_sparse_softmax_backward_data": 4,
        "_sparse_log_softmax_backward_data": 4,
    },
)


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
