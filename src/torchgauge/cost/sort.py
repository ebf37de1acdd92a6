"""Sorting and searching, in comparisons (flops where the values are floating):

sort, unique          ⌈log₂ n⌉ per element of a row of n
topk                  ⌈log₂ k⌉ per element, at least 1: a heap of the k best
kthvalue, median      2 per element: the expected cost of selection by partition
searchsorted          ⌈log₂ n⌉ per value looked up in n
"""

from __future__ import annotations

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import arithmetic, extent, per_input

per_input("sort", {"kthvalue": 2, "median": 2, "nanmedian": 3, "unique_consecutive": 1, "unique_dim_consecutive": 1})


@formula("aten::sort", "aten::argsort", "aten::msort", "aten::mode", category="sort")
def sort(call: Call) -> Work:
    values = call["self"]
    default = 0 if call.op == "aten::msort" else -1
    return arithmetic(call, values.numel * _doublings(extent(values, call.get("dim", default))))


@formula("aten::_unique", "aten::_unique2", category="sort")
def unique(call: Call) -> Work:
    elements = call["self"].numel
    return arithmetic(call, elements * _doublings(elements))


@formula("aten::unique_dim", category="sort")
def unique_dim(call: Call) -> Work:
    values = call["self"]
    return arithmetic(call, values.numel * _doublings(extent(values, call["dim"])))


@formula("aten::topk", category="sort")
def topk(call: Call) -> Work:
    return arithmetic(call, call["self"].numel * max(_doublings(call["k"]), 1))


@formula("aten::searchsorted", "aten::bucketize", category="sort")
def searchsorted(call: Call) -> Work:
    boundaries = call.get("sorted_sequence") or call["boundaries"]
    return arithmetic(call, call.out.numel * _doublings(extent(boundaries, -1)))


def _doublings(n: int) -> int:
    """⌈log₂ n⌉, 0 for n ≤ 1."""
    return max(n - 1, 0).bit_length()
