from __future__ import annotations

from math import inf

import pytest

from tests.cost.calls import cost, judge, spec

X = spec(4, 6)


@pytest.mark.parametrize(
    ("name", "flops"),
    [("sum", 24), ("mean", 24 + 4), ("var", 4 * 24 + 2 * 4), ("std", 4 * 24 + 3 * 4), ("amax", 24), ("argmax", 24),
     ("cumsum", 24), ("aminmax", 48)],
)  # fmt: skip
def test_flops_per_element_and_per_result(name: str, flops: int) -> None:
    found = judge(f"aten::{name}", spec(4), self=X)
    assert (found.category, found.cost.flops) == ("reduction", flops)


@pytest.mark.parametrize(("order", "flops"), [(2, 2 * 24 + 4), (1, 48), (inf, 48), (3, 3 * 24 + 4), (0, 24)])
def test_norms(order: float, flops: int) -> None:
    assert cost("aten::linalg_vector_norm", spec(4), self=X, ord=order).flops == flops


def test_max_reduces_or_compares_two_tensors() -> None:
    assert cost("aten::max", spec(4), spec(4, dtype="int64"), self=X, dim=1).flops == 24
    assert cost("aten::max", X, self=X, other=spec(6)).flops == 24


def test_pairwise_distances() -> None:
    done = cost("aten::_cdist_forward", spec(2, 5, 7), x1=spec(2, 5, 3), x2=spec(2, 7, 3), p=2.0)
    assert (done.macs, done.flops) == (0, 70 * 3 * 3 + 70)
