from __future__ import annotations

import pytest

from tests.cost.calls import cost, judge, spec
from torchgauge.facts import Cost

PLANES = spec(2, 3, 8, 8)


@pytest.mark.parametrize(
    ("name", "per_output"),
    [("upsample_nearest2d", 0), ("upsample_bilinear2d", 9), ("upsample_bicubic2d", 35), ("constant_pad_nd", 0)],
)
def test_flops_per_output(name: str, per_output: int) -> None:
    out = spec(2, 3, 16, 16)
    found = judge(f"aten::{name}", out, self=PLANES)
    assert (found.category, found.cost) == ("resize", Cost(0, per_output * out.numel, PLANES.nbytes, out.nbytes))


def test_an_antialiased_kernel_grows_with_the_reduction() -> None:
    halved = cost("aten::_upsample_bilinear2d_aa", spec(2, 3, 4, 4), self=PLANES)
    doubled = cost("aten::_upsample_bilinear2d_aa", spec(2, 3, 16, 16), self=PLANES)
    assert halved.flops == 6 * (8 * 4 * 7 + 4 * 4 * 7)
    assert doubled.flops == 6 * (8 * 16 * 3 + 16 * 16 * 3)


@pytest.mark.parametrize(("mode", "per_coordinate", "per_output"), [(0, 6, 9), (1, 5, 0), (2, 30, 35)])
def test_grid_sampling(mode: int, per_coordinate: int, per_output: int) -> None:
    out = spec(2, 3, 5, 7)
    done = cost(
        "aten::grid_sampler_2d", out, input=PLANES, grid=spec(2, 5, 7, 2), interpolation_mode=mode, align_corners=False
    )
    assert done.flops == per_coordinate * 2 * 70 + per_output * out.numel


def test_an_affine_grid_is_a_matrix_product() -> None:
    assert cost("aten::affine_grid_generator", spec(2, 5, 7, 2), theta=spec(2, 2, 3)).macs == 2 * 35 * 2 * 3


def test_overlapping_windows_are_summed() -> None:
    columns = spec(2, 27, 36)
    assert cost("aten::im2col", columns, self=PLANES).flops == 0
    assert cost("aten::col2im", PLANES, self=columns).flops == columns.numel
