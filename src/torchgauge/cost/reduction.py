"""Reductions and scans: flops per input element, and what remains to do per result.

n elements cost n additions or comparisons (the first against the neutral element). mean: n + 1. var: the sum, x − mean,
the square, the sum: 4 n + 2; std one root more. Norms: |x|ᵖ 2 (1 for p = 1, 2 and ∞: |x| or x²), the sum 1, the root 1.

Pairwise distances: per pair and coordinate a difference and the norm's two or three flops. No MACs,
even where a kernel uses a matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import argument, arithmetic, per_input, qualified


class ReductionRate(NamedTuple):
    per_element: int
    per_result: int = 0


_REDUCTIONS: Mapping[str, ReductionRate] = {
    "sum prod amax amin argmax argmin any all count_nonzero": ReductionRate(1),
    "nansum": ReductionRate(2),  # a test for NaN
    "mean": ReductionRate(1, 1),
    "nanmean": ReductionRate(2, 1),
    "var var_mean": ReductionRate(4, 2),
    "std std_mean": ReductionRate(4, 3),
    "aminmax _aminmax": ReductionRate(2),
    "hash_tensor": ReductionRate(0),
}

per_input(
    "reduction",
    {
        "_sparse_sum cumsum cumprod cummax cummin _cummax_helper _cummin_helper segment_reduce "
        "_segment_reduce_backward bincount": 1,
        "logcumsumexp _logcumsumexp": 7,  # a logaddexp per element
        # (x − min) / width, rounded
        "histc histogram histogramdd _histogramdd_from_bin_cts _histogramdd_from_bin_tensors": 3,
        "_histogramdd_bin_edges": 2,
        "value_selecting_reduction_backward _is_all_true _is_any_true": 0,
    },
)


for _names, _rate in _REDUCTIONS.items():

    @formula(*qualified(*_names.split()), category="reduction")
    def reduction(call: Call, rate: ReductionRate = _rate) -> Work:
        return arithmetic(call, rate.per_element * call["self"].numel + rate.per_result * call.out.numel)


@formula("aten::max", "aten::min", category="reduction")
def extremum(call: Call) -> Work:
    """The maximum of a tensor, along a dimension, or of two tensors elementwise."""
    is_binary = call.get("other") is not None
    return arithmetic(call, call.out.numel if is_binary else call["self"].numel)


@formula("aten::trace", category="reduction")
def trace(call: Call) -> Work:
    diagonal = min(call["self"].shape)
    return arithmetic(call, diagonal)._replace(bytes_read=diagonal * call["self"].itemsize)


@formula("aten::linalg_vector_norm", "aten::norm", "aten::native_norm", "aten::linalg__powsum", category="reduction")
def norm(call: Call) -> Work:
    order = argument(call, "ord", "p")
    return arithmetic(call, norm_flops(call["self"].numel, call.out.numel, 2 if order is None else order))


@formula("aten::dist", category="reduction")
def dist(call: Call) -> Work:
    elements = call["self"].numel
    return arithmetic(call, elements + norm_flops(elements, 1, call.get("p", 2)))


def norm_flops(elements: int, results: int, order: float | str) -> int:
    """Flops of the p-norms of `elements` numbers in `results` vectors."""
    if order in ("fro", 2):
        return 2 * elements + results
    if order in (1, inf, -inf, "inf", "-inf"):
        return 2 * elements
    if order == 0:
        return elements
    return 3 * elements + results


@formula(
    "aten::_cdist_forward", "aten::_euclidean_dist", "aten::cdist", "aten::_pdist_forward", category="reduction"
)  # fmt: skip
def pairwise_distances(call: Call) -> Work:
    pairs, size = call.out.numel, argument(call, "x1", "self").shape[-1]
    return arithmetic(call, pairs * size + norm_flops(pairs * size, pairs, call.get("p", 2)))


@formula("aten::_cdist_backward", "aten::_pdist_backward", category="reduction")
def pairwise_distances_backward(call: Call) -> Work:
    """Difference, two products, a sum per pair and coordinate."""
    distances, vectors = argument(call, "cdist", "pdist"), argument(call, "x1", "self")
    return arithmetic(call, 4 * distances.numel * vectors.shape[-1])
