from __future__ import annotations

import pytest

from tests.cost.calls import cost, judge, spec


def test_nms_sorts_and_compares_every_pair() -> None:
    done = cost("torchvision::nms", spec(10, dtype="int64"), dets=spec(100, 4), scores=spec(100))
    assert done.flops == 100 * 7 + 300 + 13 * 4950


@pytest.mark.parametrize(("ratio", "samples"), [(2, 4), (3, 9), (-1, 4)])
def test_roi_align_averages_bilinear_samples(ratio: int, samples: int) -> None:
    out = spec(10, 256, 7, 7)
    found = judge("torchvision::roi_align", out, input=spec(1, 256, 50, 50), rois=spec(10, 5), sampling_ratio=ratio)
    assert (found.category, found.cost.flops) == ("pooling", out.numel * samples * 10)


@pytest.mark.parametrize(
    ("op", "shape", "flops"),
    [
        ("linalg_cholesky_ex", (2, 6, 6), 2 * 72),
        ("linalg_inv_ex", (6, 6), 432),
        ("_linalg_det", (6, 6), 144),
        ("linalg_qr", (9, 6), 2 * (2 * 9 * 36 - 144)),
        ("_linalg_svd", (6, 9), 14 * 9 * 36 + 8 * 216),
        ("_linalg_eigh", (6, 6), 9 * 216),
    ],
)
def test_factorisations_have_flops_and_no_macs(op: str, shape: tuple[int, ...], flops: int) -> None:
    done = cost(f"aten::{op}", spec(*shape), A=spec(*shape))
    assert (done.macs, done.flops) == (0, flops)


def test_solving_factorises_and_substitutes_twice() -> None:
    done = cost("aten::_linalg_solve_ex", spec(6, 2), A=spec(6, 6), B=spec(6, 2))
    assert done.flops == 144 + 2 * 36 * 2
