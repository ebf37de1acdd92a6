"""Parameters stored in packed form: how many values they hold, and which tensors only serve the packing.

Each rule knows one layout: bitsandbytes (4 and 8 bits), GPTQ, AWQ, compressed-tensors, FP8 with scales, MXFP4.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod

from torchgauge.checkpoint.index import Entry, Role

Read = Callable[[Entry], bytes | None]
Names = Mapping[str, Entry]
Logical = dict[str, int]
Rule = Callable[[Names, str, Read], Logical]
RULES: dict[str, Rule] = {}

_SERVES_4BIT = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")


def rule(suffix: str) -> Callable[[Rule], Rule]:
    """Register the layout of tensors whose names end with `suffix`."""

    def register(function: Rule) -> Rule:
        if suffix in RULES:
            raise ValueError(f"a layout for {suffix} is registered twice")
        RULES[suffix] = function
        return function

    return register


def unpack(entries: Iterable[Entry], read: Read) -> list[Entry]:
    """The entries with their logical elements; `read` gives a small tensor's bytes, None where it cannot."""
    listed = list(entries)
    names = {entry.name: entry for entry in listed}
    logical: Logical = {}
    suffixes = tuple(RULES)
    for name in [entry.name for entry in listed if entry.name.endswith(suffixes)]:
        for suffix, layout in RULES.items():
            if name.endswith(suffix):
                logical.update(layout(names, name.removesuffix(suffix), read))
    if not logical:
        return listed
    return [with_logical(entry, logical[entry.name]) if entry.name in logical else entry for entry in listed]


def with_logical(entry: Entry, count: int) -> Entry:
    """What holds values is a parameter, whatever its type; what only serves is none."""
    own = entry.role in (Role.PARAMETER, Role.BUFFER)
    role = (Role.PARAMETER if count else Role.OTHER) if own else entry.role
    return replace(entry, role=role, logical_elements=count)


def _served(names: Names, candidates: Iterable[str]) -> Iterator[tuple[str, int]]:
    return ((name, 0) for name in candidates if name in names)


@rule(".absmax")
def bitsandbytes_4bit(names: Names, weight: str, read: Read) -> Logical:
    packed = names.get(weight)
    states = [name for kind in ("nf4", "fp4") if (name := f"{weight}.quant_state.bitsandbytes__{kind}") in names]
    if packed is None:
        return {}
    shape = _quant_state_shape(read(names[states[0]])) if states else None
    # Two values in a byte; the last byte may hold only one, which the stored shape tells.
    count = prod(shape) if shape and (prod(shape) + 1) // 2 == packed.nbytes else 2 * packed.nbytes
    return {weight: count, **dict(_served(names, (*states, *(f"{weight}.{part}" for part in _SERVES_4BIT))))}


def _quant_state_shape(content: bytes | None) -> list[int] | None:
    try:
        state = json.loads(content or b"")
    except (ValueError, RecursionError):
        return None
    shape = state.get("shape") if isinstance(state, dict) else None
    return shape if isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape) else None


@rule(".SCB")
def bitsandbytes_8bit(names: Names, layer: str, read: Read) -> Logical:
    weight = names.get(f"{layer}.weight")
    if weight is None or weight.spec.dtype != "int8":
        return {}
    return {weight.name: weight.elements, **dict(_served(names, (f"{layer}.SCB", f"{layer}.weight_format")))}


@rule(".qweight")
def gptq_or_awq(names: Names, layer: str, read: Read) -> Logical:
    """GPTQ packs along the inputs, AWQ along the outputs; `scales` has a column for each output."""
    packed, zeros, scales = (names.get(f"{layer}.{part}") for part in ("qweight", "qzeros", "scales"))
    if packed is None or scales is None or len(packed.spec.shape) != 2 or len(scales.spec.shape) != 2:
        return {}
    outputs = scales.spec.shape[1]
    bits = _bits(zeros, outputs)
    order = names.get(f"{layer}.g_idx")
    if packed.spec.shape[1] != outputs:
        inputs = packed.spec.shape[0]
    elif order is not None and len(order.spec.shape) == 1 and order.elements:
        inputs = order.spec.shape[0]
    else:
        inputs = packed.spec.shape[0] * 8 * packed.spec.itemsize // bits
    serving = (f"{layer}.{part}" for part in ("qzeros", "scales", "g_idx", "perm", "workspace"))
    return {packed.name: inputs * outputs, **dict(_served(names, serving))}


def _bits(zeros: Entry | None, outputs: int) -> int:
    """The zero points are packed along the outputs: their number of columns tells the bits. 4 where there are none."""
    if zeros is None or len(zeros.spec.shape) != 2 or not outputs:
        return 4
    bits = round(8 * zeros.spec.itemsize * zeros.spec.shape[1] / outputs)
    return bits if bits in (2, 3, 4, 8) else 4


@rule(".weight_packed")
def compressed_tensors(names: Names, layer: str, read: Read) -> Logical:
    packed, shape = names[f"{layer}.weight_packed"], names.get(f"{layer}.weight_shape")
    content = None if shape is None else read(shape)
    sizes = _int64s(content, shape) if shape is not None and content is not None else []
    # Without the shape: four bits, as all of its common forms have.
    count = prod(sizes) if sizes else 2 * packed.nbytes
    return {packed.name: count if 0 < count <= 16 * packed.nbytes else 2 * packed.nbytes, **_scales_of(names, layer)}


def _int64s(content: bytes, shape: Entry) -> list[int]:
    width = shape.spec.itemsize
    order = "big" if shape.big_endian else "little"
    return [int.from_bytes(content[at : at + width], order) for at in range(0, len(content), width)]  # type: ignore[arg-type]


@rule(".weight_scale")
@rule(".weight_scale_inv")
def scaled_weight(names: Names, layer: str, read: Read) -> Logical:
    """FP8, INT8 or NVFP4 beside its scales."""
    weight = names.get(f"{layer}.weight")
    if weight is None or f"{layer}.weight_packed" in names:
        return {}
    per_item = 2 if weight.spec.dtype == "uint8" or weight.spec.dtype == "float4_e2m1fn_x2" else 1
    return {weight.name: per_item * weight.elements, **_scales_of(names, layer)}


def _scales_of(names: Names, layer: str) -> Logical:
    parts = ("scale", "scale_inv", "scale_2", "zero_point", "global_scale", "g_idx", "shape")
    kinds = ("weight", "input", "output", "k", "v")
    return dict(_served(names, (f"{layer}.{kind}_{part}" for kind in kinds for part in parts)))


@rule("_blocks")
def mxfp4(names: Names, weight: str, read: Read) -> Logical:
    blocks, scales = names[f"{weight}_blocks"], names.get(f"{weight}_scales")
    if scales is None or blocks.spec.dtype != "uint8" or scales.spec.dtype != "uint8":
        return {}
    return {blocks.name: 2 * blocks.elements, scales.name: 0}
