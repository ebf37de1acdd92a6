"""Pairwise distances: per pair and coordinate a difference and the norm's two or three flops.

No MACs, also where a kernel takes the way over a matrix product.
"""

from __future__ import annotations

from torchgauge.cost.reduction import norm_flops
from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import arithmetic


@formula("aten::_cdist_forward", "aten::_euclidean_dist", "aten::cdist", category="reduction")
def cdist(call: Call) -> Work:
    pairs, size = call.out.numel, call["x1"].shape[-1]
    return arithmetic(call, pairs * size + norm_flops(pairs * size, pairs, call.get("p", 2)))


@formula("aten::_pdist_forward", category="reduction")
def pdist(call: Call) -> Work:
    pairs, size = call.out.numel, call["self"].shape[-1]
    return arithmetic(call, pairs * size + norm_flops(pairs * size, pairs, call.get("p", 2)))


@formula("aten::_cdist_backward", category="reduction")
def cdist_backward(call: Call) -> Work:
    """Difference, two products, a sum per pair and coordinate."""
    return arithmetic(call, 4 * call["cdist"].numel * call["x1"].shape[-1])


@formula("aten::_pdist_backward", category="reduction")
def pdist_backward(call: Call) -> Work:
    return arithmetic(call, 4 * call["pdist"].numel * call["self"].shape[-1])
