from __future__ import annotations

import pytest
import torch

from torchgauge.errors import UsageError
from torchgauge.source import InputSpec, parse_dtype, parse_input


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("1x3x224x224", InputSpec(None, (1, 3, 224, 224))),
        ("1×3×32×32", InputSpec(None, (1, 3, 32, 32))),
        ("16", InputSpec(None, (16,))),
        ("ids=1x128:int64", InputSpec("ids", (1, 128), torch.int64)),
        ("x_len=4:long", InputSpec("x_len", (4,), torch.int64)),
        (" mask=1x8:bool ", InputSpec("mask", (1, 8), torch.bool)),
        ("t=scalar:f32", InputSpec("t", (), torch.float32)),
    ],
)
def test_an_input_is_a_name_dims_and_a_type(text: str, spec: InputSpec) -> None:
    assert parse_input(text) == spec


@pytest.mark.parametrize("text", ["", "x", "1x", "x3", "1x-3", "1.5x2", "a b=1x2", "=1x2", "1x2:", "n=1x2:int64:3"])
def test_a_malformed_input_is_a_usage_error_that_shows_the_form(text: str) -> None:
    with pytest.raises(UsageError, match=r"\[NAME=\]DIMS\[:DTYPE\]"):
        parse_input(text)


@pytest.mark.parametrize(
    ("names", "dtype"),
    [
        (("float32", "fp32", "f32", "float", "torch.float32", "FP32"), torch.float32),
        (("bfloat16", "bf16"), torch.bfloat16),
        (("float16", "half", "fp16"), torch.float16),
        (("float64", "double"), torch.float64),
        (("int64", "long", "i64"), torch.int64),
        (("bool",), torch.bool),
        (("float8_e4m3fn",), torch.float8_e4m3fn),
    ],
)
def test_a_type_has_a_name_and_short_names(names: tuple[str, ...], dtype: torch.dtype) -> None:
    assert {parse_dtype(name) for name in names} == {dtype}


def test_an_unknown_type_is_a_usage_error_with_the_closest_names() -> None:
    with pytest.raises(UsageError, match="'bfloat16'"):
        parse_dtype("bflot16")
    with pytest.raises(UsageError, match="Use one of: float64"):
        parse_dtype("zzz")


def test_a_torch_name_that_is_not_a_dtype_is_refused() -> None:
    with pytest.raises(UsageError):
        parse_dtype("nn")
