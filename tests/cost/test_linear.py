from __future__ import annotations

import pytest

from tests.cost.calls import cost, spec


def test_linear_is_input_elements_by_output_features() -> None:
    done = cost("aten::linear", spec(2, 7, 5), input=spec(2, 7, 3), weight=spec(5, 3), bias=spec(5))
    assert (done.macs, done.flops) == (14 * 15, 2 * 14 * 15 + 70)


def test_linear_with_a_vector_as_weight_is_a_dot_per_row() -> None:
    assert cost("aten::linear", spec(2), input=spec(2, 3), weight=spec(3)).macs == 6


@pytest.mark.parametrize("op", ["aten::_weight_int4pack_mm", "aten::_weight_int8pack_mm"])
def test_packed_weights_hide_nothing(op: str) -> None:
    packed = spec(1, 1, 32, 4, dtype="int32")
    x, out = spec(2, 64, dtype="bfloat16"), spec(2, 8, dtype="bfloat16")
    assert cost(op, out, self=x, mat2=packed).macs == 2 * 64 * 8


def test_four_bit_weights_are_scaled_and_shifted_one_by_one() -> None:
    x, out = spec(2, 64, dtype="bfloat16"), spec(2, 8, dtype="bfloat16")
    assert cost("aten::_weight_int4pack_mm", out, self=x, mat2=spec(1)).flops == 2 * 1024 + 2 * 64 * 8


def test_an_integer_layer_with_floating_ends_converts_them() -> None:
    dynamic = cost("quantized::linear_dynamic", spec(2, 5), X=spec(2, 3))
    static = cost("quantized::linear", spec(2, 5, dtype="quint8"), X=spec(2, 3, dtype="quint8"))
    assert (dynamic.macs, dynamic.flops) == (30, 2 * (6 + 10))
    assert (static.macs, static.flops) == (30, 0)


def test_linear_backward_honours_its_mask() -> None:
    arguments = {"self": spec(4, 3), "grad_output": spec(4, 5), "weight": spec(5, 3)}
    everything = cost("aten::linear_backward", spec(4, 3), **arguments, output_mask=[True, True, True])
    weight = cost("aten::linear_backward", spec(5, 3), **arguments, output_mask=[False, True, False])
    assert (everything.macs, everything.flops) == (120, 240 + 20)
    assert (weight.macs, weight.flops) == (60, 120)


def test_bilinear_contracts_with_one_input_and_then_the_other() -> None:
    direct = cost("aten::bilinear", spec(3, 5), input1=spec(3, 4), input2=spec(3, 6), weight=spec(5, 4, 6))
    assert direct.macs == 3 * 5 * 4 * 6 + 3 * 5 * 6
    kernel = cost(
        "aten::_trilinear",
        spec(3, 5),
        i1=spec(3, 4),
        i2=spec(5, 4, 6),
        i3=spec(3, 6),
        expand1=[1, 3],
        expand2=[0],
        expand3=[1, 2],
        sumdim=[2, 3],
    )
    assert kernel.macs == direct.macs


def test_bitsandbytes_products_are_counted() -> None:
    x, packed = spec(6, 64), spec(4096, 1, dtype="uint8")
    four = cost("bitsandbytes::gemm_4bit", spec(6, 128), A=x, B=packed, shapeB=[128, 64], bias=spec(128))
    assert (four.macs, four.flops) == (6 * 64 * 128, 2 * 6 * 64 * 128 + 64 * 128 + 6 * 128)
    rows, columns = spec(6, 64, dtype="int8"), spec(128, 64, dtype="int8")
    eight = cost("bitsandbytes::int8_scaled_mm", spec(6, 128, dtype="float16"), A=rows, B=columns)
    assert (eight.macs, eight.flops) == (6 * 64 * 128, 2 * 6 * 128)
    plain = cost("bitsandbytes::int8_linear_matmul", spec(6, 128, dtype="int32"), A=rows, B=columns)
    assert (plain.macs, plain.flops) == (6 * 64 * 128, 0)
