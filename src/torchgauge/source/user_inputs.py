"""Inputs from the user: values, or sizes to create tensors from, in Python or on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from torchgauge.errors import InputError, UsageError
from torchgauge.nested import find_all
from torchgauge.source.candidate import Candidate, Defaults, ForwardSignature, is_ids, is_mask, make_tensor, token_value
from torchgauge.source.modules import all_modules, has_attribute
from torchgauge.source.target_check import did_you_mean


def given_values(signature: ForwardSignature, inputs: object, kwargs: Mapping[str, object]) -> Candidate:
    """A tuple holds positional arguments, a dict keywords; anything else, also a list, is a single argument."""
    args: tuple[object, ...] = ()
    keywords = dict(kwargs)
    if isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs):
        # If forward needs one argument and knows none of the names, the dict is that argument.
        needed = [parameter.name for parameter in signature.required(kwargs)]
        unknown = not signature.takes_any_keyword and not any(name in signature.names for name in inputs)
        if unknown and len(needed) == 1:
            args = (inputs,)
        else:
            keywords = {**inputs, **kwargs}
    elif isinstance(inputs, tuple):
        # A named tuple is one structured value, not a list of arguments.
        args = (inputs,) if hasattr(inputs, "_fields") else inputs
    elif inputs is not None:
        args = (inputs,)
    signature.check(len(args), keywords)
    return Candidate(args, keywords, None, has_values=True)


def parse_sizes(input_size: object) -> tuple[InputSpec, ...]:
    """`input_size` as specs: one shape, several shapes in order, or shapes by name."""
    if isinstance(input_size, Mapping):
        return tuple(InputSpec(str(name), _shape(shape)) for name, shape in input_size.items())
    if isinstance(input_size, Sequence) and any(isinstance(item, Sequence) for item in input_size):
        return tuple(InputSpec(None, _shape(shape)) for shape in input_size)
    return (InputSpec(None, _shape(input_size)),)


def _shape(value: object) -> tuple[int, ...]:
    sizes = (value,) if isinstance(value, int) else value
    if (
        not isinstance(sizes, Sequence)
        or isinstance(sizes, str)
        or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes)
    ):
        raise InputError(f"{value!r} is not a shape: write one like (1, 3, 224, 224), or several in a list")
    return tuple(int(size) for size in sizes)


def sized_candidates(
    model: nn.Module,
    signature: ForwardSignature,
    specs: Sequence[InputSpec],
    defaults: Defaults,
    kwargs: Mapping[str, object],
) -> Iterator[Candidate]:
    """Tensors of the given sizes, with all plausible types if the type is not given."""
    positional = sum(spec.name is None for spec in specs)
    names = [*(spec.name for spec in specs if spec.name), *kwargs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"the input '{name}' is given twice")
    needed = signature.required(kwargs)
    if not positional and len(needed) == 1 and needed[0].is_tensor_dict and names[0] not in signature.names:
        # Names that forward does not know are the keys of the dict that it takes.
        for found in _typed(model, specs, names[: len(specs)], defaults, {}):
            yield replace(found, args=(), kwargs={needed[0].name: found.kwargs, **kwargs})
        return
    signature.check(positional, {*(spec.name for spec in specs if spec.name), *kwargs})
    # The parameter for each spec, "" in `*args`.
    places = iter([parameter.name for parameter in signature.positional])
    yield from _typed(model, specs, [spec.name or next(places, "") for spec in specs], defaults, kwargs)


def _typed(
    model: nn.Module, specs: Sequence[InputSpec], names: Sequence[str], defaults: Defaults, kwargs: Mapping[str, object]
) -> Iterator[Candidate]:
    looks_up = any(has_attribute(module, "num_embeddings") for module in all_modules(model))
    value = token_value(model)
    choices: list[tuple[torch.dtype, ...]] = []
    for spec, name in zip(specs, names, strict=True):
        if spec.dtype is not None:
            choices.append((spec.dtype,))
        elif is_ids(name) or name == "attention_mask":
            choices.append((torch.int64,))
        elif is_mask(name):
            choices.append((torch.bool, defaults.dtype, torch.int64))
        else:
            may_be_ids = looks_up and defaults.dtype.is_floating_point
            choices.append((defaults.dtype, torch.int64) if may_be_ids else (defaults.dtype,))
    for dtypes in product(*choices):
        tensors = [make_tensor(s.shape, dtype, value=value) for s, dtype in zip(specs, dtypes, strict=True)]
        # Integer types that the user did not request are an assumption; the model's floating-point type is not.
        assumed = [
            f"{name or 'input'} {str(dtype).removeprefix('torch.')}: {source}"
            for spec, name, dtype in zip(specs, names, dtypes, strict=True)
            if spec.dtype is None and not dtype.is_floating_point
            for source in ["from its name" if is_ids(name) or is_mask(name) else "the model has an embedding"]
        ]
        yield Candidate(
            tuple(tensor for spec, tensor in zip(specs, tensors, strict=True) if spec.name is None),
            {spec.name: tensor for spec, tensor in zip(specs, tensors, strict=True) if spec.name} | dict(kwargs),
            "; ".join(assumed) or None,
        )


def holds_tensor(value: object) -> bool:
    return next(find_all(value, Tensor), None) is not None


_SHORT_NAMES = {
    "fp64": "float64", "f64": "float64", "double": "float64", "fp32": "float32", "f32": "float32", "float": "float32",
    "fp16": "float16", "f16": "float16", "half": "float16", "bf16": "bfloat16", "i64": "int64", "long": "int64",
    "i32": "int32", "int": "int32", "i16": "int16", "short": "int16", "i8": "int8", "u8": "uint8", "byte": "uint8",
}  # fmt: skip
_NAMES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "complex64", "complex128", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
_INPUT = re.compile(r"(?:(?P<name>[^=:]+)=)?(?P<dims>[0-9]+(?:[x×,][0-9]+)*|scalar)(?::(?P<dtype>[^:]+))?")


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One `--input`: without a name the next positional argument, without a dtype of the model's type."""

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
        hint = did_you_mean(name, (*_NAMES, *_SHORT_NAMES)) or f" Use one of: {', '.join(_NAMES)}."
        raise UsageError(f"'{text}' is not a dtype.{hint}")
    return dtype
