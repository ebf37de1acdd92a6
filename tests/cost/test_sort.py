from __future__ import annotations

import pytest

from tests.cost.calls import cost, judge, spec

X = spec(4, 100)
INDEX = spec(4, 100, dtype="int64")


@pytest.mark.parametrize(
    ("op", "arguments", "comparisons"),
    [
        ("aten::sort", {"dim": -1}, 400 * 7),
        ("aten::sort", {"dim": 0}, 400 * 2),
        ("aten::topk", {"k": 8}, 400 * 3),
        ("aten::topk", {"k": 1}, 400),
        ("aten::kthvalue", {"k": 5}, 800),
        ("aten::_unique2", {}, 400 * 9),
    ],
)
def test_comparisons(op: str, arguments: dict[str, int], comparisons: int) -> None:
    found = judge(op, X, INDEX, self=X, **arguments)
    assert (found.category, found.cost.flops) == ("sort", comparisons)


def test_searching_takes_a_comparison_per_doubling() -> None:
    found = cost("aten::searchsorted", spec(50, dtype="int64"), sorted_sequence=spec(1000), self=spec(50))
    assert found.flops == 50 * 10


@pytest.mark.parametrize(
    ("op", "given", "out", "flops"),
    [
        ("aten::_fft_c2c", spec(3, 64, dtype="complex64"), spec(3, 64, dtype="complex64"), 3 * 5 * 64 * 6),
        ("aten::_fft_r2c", spec(3, 64), spec(3, 33, dtype="complex64"), 3 * 5 * 32 * 6),
        ("aten::_fft_c2r", spec(3, 33, dtype="complex64"), spec(3, 64), 3 * 5 * 32 * 6),
    ],
)
def test_fourier_transforms(op: str, given: object, out: object, flops: int) -> None:
    found = judge(op, out, self=given, dim=[1])  # type: ignore[arg-type]
    assert (found.category, found.cost.flops) == ("fft", flops)


def test_a_transform_over_two_dimensions_counts_all_points() -> None:
    plane = spec(2, 8, 16, dtype="complex64")
    assert cost("aten::_fft_c2c", plane, self=plane, dim=[1, 2]).flops == 2 * 5 * 128 * 7
