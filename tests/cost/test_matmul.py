from __future__ import annotations

import pytest

from tests.cost.calls import cost, judge, spec
from torchgauge.facts import Cost


def test_mm_is_rows_by_columns_by_shared() -> None:
    assert cost("aten::mm", spec(2, 5), self=spec(2, 3), mat2=spec(3, 5)) == Cost(30, 60, 24 + 60, 40)


def test_bmm_multiplies_the_batch() -> None:
    assert cost("aten::bmm", spec(7, 2, 5), self=spec(7, 2, 3), mat2=spec(7, 3, 5)).macs == 7 * 30


def test_a_bias_is_a_flop_and_no_mac() -> None:
    added = cost("aten::addmm", spec(2, 5), self=spec(5), mat1=spec(2, 3), mat2=spec(3, 5))
    assert (added.macs, added.flops) == (30, 60 + 10)
    batched = cost("aten::baddbmm", spec(7, 2, 5), self=spec(7, 2, 5), batch1=spec(7, 2, 3), batch2=spec(7, 3, 5))
    assert (batched.macs, batched.flops) == (210, 420 + 70)


def test_addbmm_sums_the_products_of_the_batch() -> None:
    summed = cost("aten::addbmm", spec(2, 5), self=spec(2, 5), batch1=spec(7, 2, 3), batch2=spec(7, 3, 5))
    assert (summed.macs, summed.flops) == (210, 420 + 10)


def test_vector_products() -> None:
    assert cost("aten::mv", spec(4), self=spec(4, 3), vec=spec(3)).macs == 12
    assert cost("aten::dot", spec(), self=spec(9), tensor=spec(9)).macs == 9
    assert cost("aten::addmv", spec(4), self=spec(4), mat=spec(4, 3), vec=spec(3)).flops == 24 + 4
    assert cost("aten::addr", spec(4, 3), self=spec(4, 3), vec1=spec(4), vec2=spec(3)).flops == 2 * 12


@pytest.mark.parametrize(
    ("left", "right", "out", "macs"),
    [
        ((3,), (3,), (), 3),
        ((2, 3), (3,), (2,), 6),
        ((3,), (3, 5), (5,), 15),
        ((2, 3), (3, 5), (2, 5), 30),
        ((7, 2, 3), (3, 5), (7, 2, 5), 210),
        ((6, 1, 2, 3), (7, 3, 5), (6, 7, 2, 5), 42 * 30),
    ],
)
def test_matmul_broadcasts(left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...], macs: int) -> None:
    assert cost("aten::matmul", spec(*out), self=spec(*left), other=spec(*right)).macs == macs


def test_integer_products_have_macs_but_no_flops() -> None:
    product = judge(
        "aten::_int_mm", spec(2, 5, dtype="int32"), self=spec(2, 3, dtype="int8"), mat2=spec(3, 5, dtype="int8")
    )
    assert product == ("matmul", "counted", Cost(30, 0, 6 + 15, 40))


def test_tensordot_contracts_the_given_dimensions() -> None:
    dotted = cost(
        "aten::tensordot", spec(2, 5), self=spec(2, 3, 4), other=spec(4, 3, 5), dims_self=[1, 2], dims_other=[1, 0]
    )
    assert dotted.macs == 2 * 3 * 4 * 5


def test_a_chain_of_matrices_is_multiplied_in_the_cheapest_order() -> None:
    tensors = [spec(10, 100), spec(100, 5), spec(5, 50)]
    assert cost("aten::linalg_multi_dot", spec(10, 50), tensors=tensors).macs == 10 * 100 * 5 + 10 * 5 * 50


@pytest.mark.parametrize(
    ("left", "right", "out", "macs"),
    [
        ((12, 3), (4, 3, 5), (12, 5), 12 * 3 * 5),  # rows of all groups
        ((4, 2, 3), (4, 3, 5), (4, 2, 5), 4 * 2 * 3 * 5),
        ((4, 2, 3), (3, 20), (2, 20), 2 * 3 * 20),  # columns of all groups
        ((2, 12), (12, 5), (4, 2, 5), 2 * 12 * 5),  # the shared dimension of all groups
    ],
)
def test_grouped_mm_does_each_row_once(
    left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...], macs: int
) -> None:
    assert cost("aten::_grouped_mm", spec(*out), self=spec(*left), mat2=spec(*right)).macs == macs


def test_scaled_mm_scales_its_output() -> None:
    eight = "float8_e4m3fn"
    scaled = cost(
        "aten::_scaled_mm",
        spec(2, 5, dtype="bfloat16"),
        self=spec(2, 4, dtype=eight),
        mat2=spec(4, 5, dtype=eight),
        scale_a=spec(1),
        scale_b=spec(1),
        bias=spec(5, dtype="bfloat16"),
    )
    assert (scaled.macs, scaled.flops) == (40, 80 + 10 + 10)


def test_two_numbers_packed_in_a_byte_are_two() -> None:
    four = "float4_e2m1fn_x2"
    packed = cost(
        "aten::_scaled_mm",
        spec(2, 5, dtype="bfloat16"),
        self=spec(2, 4, dtype=four),
        mat2=spec(4, 5, dtype=four),
        scale_a=spec(1),
        scale_b=spec(1),
    )
    assert packed.macs == 2 * 8 * 5


@pytest.mark.parametrize(
    ("equation", "shapes", "out", "macs"),
    [
        ("ij,jk->ik", [(2, 3), (3, 5)], (2, 5), 30),
        ("bhid,bhjd->bhij", [(2, 4, 6, 8), (2, 4, 7, 8)], (2, 4, 6, 7), 2 * 4 * 6 * 7 * 8),
        ("...ij,...jk", [(6, 1, 2, 3), (7, 3, 5)], (6, 7, 2, 5), 42 * 30),
        ("ij,jk,kl->il", [(2, 3), (3, 5), (5, 7)], (2, 7), 30 + 70),
        ("ii->i", [(4, 4)], (4,), 0),
    ],
)
def test_einsum_costs_one_mac_per_combination_of_labels(
    equation: str, shapes: list[tuple[int, ...]], out: tuple[int, ...], macs: int
) -> None:
    tensors = [spec(*shape) for shape in shapes]
    assert cost("aten::einsum", spec(*out), equation=equation, tensors=tensors).macs == macs


def test_einsum_sums_a_label_of_one_operand_before_the_product() -> None:
    summed = cost("aten::einsum", spec(3), equation="ij,i->i", tensors=[spec(3, 100), spec(3)])
    assert (summed.macs, summed.flops) == (3, 6 + 300)


def test_matmul_backward_counts_the_gradients_asked_for() -> None:
    both = cost("aten::matmul_backward", spec(2, 3), grad=spec(2, 5), self=spec(2, 3), other=spec(3, 5), mask=[1, 1])
    one = cost("aten::matmul_backward", spec(2, 3), grad=spec(2, 5), self=spec(2, 3), other=spec(3, 5), mask=[1, 0])
    assert (both.macs, one.macs) == (60, 30)
