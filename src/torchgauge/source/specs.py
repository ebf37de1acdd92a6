"""Inputs and types as they are written on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from torchgauge.errors import UsageError
from torchgauge.source.spelling import did_you_mean

_SHORT_NAMES = {
    "fp64": "float64",
    "f64": "float64",
    "double": "float64",
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "long": "int64",
    "i32": "int32",
    "int": "int32",
    "i16": "int16",
    "short": "int16",
    "i8": "int8",
    "u8": "uint8",
    "byte": "uint8",
}
_NAMES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "complex64", "complex128", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
_INPUT = re.compile(r"(?:(?P<name>[^=:]+)=)?(?P<dims>[0-9]+(?:[x×,][0-9]+)*|scalar)(?::(?P<dtype>[^:]+))?")


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One `--input`: without a name it is the next positional argument, without a dtype the model's own is taken."""

    name: str | None
    shape: tuple[int, ...]
    dtype: torch.dtype | None = None


def parse_input(text: str) -> InputSpec:
    """`1x3x224x224`, `ids=1x128:int64`, `t=scalar:float32` to an `InputSpec`."""
    match = _INPUT.fullmatch(text.strip())
    if match is None or (match["name"] and not match["name"].isidentifier()):
        raise UsageError(f"'{text}' is not an input; write [NAME=]DIMS[:DTYPE], like 1x3x224x224 or ids=1x128:int64")
    dims = [] if match["dims"] == "scalar" else re.split("[x×,]", match["dims"])
    dtype = parse_dtype(match["dtype"]) if match["dtype"] else None
    return InputSpec(match["name"], tuple(int(size) for size in dims), dtype)


def parse_dtype(text: str) -> torch.dtype:
    """`float32`, `fp32`, `f32`, `bf16`, `half`, `int64`, `long`, … to the torch type."""
    name = text.strip().lower().removeprefix("torch.")
    dtype = getattr(torch, _SHORT_NAMES.get(name, name), None) if name in (*_NAMES, *_SHORT_NAMES) else None
    if not isinstance(dtype, torch.dtype):
        hint = did_you_mean(name, (*_NAMES, *_SHORT_NAMES)) or f" There are: {', '.join(_NAMES)}."
        raise UsageError(f"'{text}' is not a dtype.{hint}")
    return dtype
