"""From the tensors of a file to the entries of an index: places are checked, roles, sharing and packing found.

Packed parameters hold more values than elements; each rule knows one layout: bitsandbytes (4 and 8 bits), GPTQ, AWQ,
compressed-tensors, FP8 with scales, MXFP4.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from torchgauge.checkpoint.byte_source import printable
from torchgauge.checkpoint.dtypes import VALUES_PER_BYTE, item_bytes
from torchgauge.checkpoint.index import Deflated, Entry, Role
from torchgauge.checkpoint.pickle.values import Inline, Storage, Tensor
from torchgauge.checkpoint.pickle.walk import Found
from torchgauge.checkpoint.sharing import View, find_owners
from torchgauge.checkpoint.tensor_names import classify, find_model_prefix
from torchgauge.errors import FormatError
from torchgauge.facts import TensorSpec
from torchgauge.facts.tensor import is_contiguous
from torchgauge.registry import Registry

Read = Callable[[Entry], bytes | None]
Names = Mapping[str, Entry]
Logical = dict[str, int]
Rule = Callable[[Names, str, Read], Logical]
# By the end of the names of the packed tensors, or of their scales.
RULES: Registry[str, Rule] = Registry("packing layout")

_SERVES_4BIT = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")


def unpack(entries: Iterable[Entry], read: Read) -> list[Entry]:
    """The entries with their logical elements; `read` returns the bytes of a small tensor, or None."""
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
    """Packed values are parameters whatever their type; auxiliary tensors are not."""
    own = entry.role in (Role.PARAMETER, Role.BUFFER)
    role = (Role.PARAMETER if count else Role.OTHER) if own else entry.role
    return replace(entry, role=role, logical_elements=count)


def _served(names: Names, candidates: Iterable[str]) -> Iterator[tuple[str, int]]:
    return ((name, 0) for name in candidates if name in names)


@RULES.register(".absmax")
def bitsandbytes_4bit(names: Names, weight: str, read: Read) -> Logical:
    packed = names.get(weight)
    states = [name for kind in ("nf4", "fp4") if (name := f"{weight}.quant_state.bitsandbytes__{kind}") in names]
    if packed is None:
        return {}
    try:
        state = json.loads(read(names[states[0]]) or b"") if states else None
    except (ValueError, RecursionError):
        state = None
    shape = state.get("shape") if isinstance(state, dict) else None
    count = 2 * packed.nbytes
    if isinstance(shape, list) and shape and all(type(size) is int and size >= 0 for size in shape):
        # Two values per byte; the last byte may hold only one, which follows from the stored shape.
        count = prod(shape) if (prod(shape) + 1) // 2 == packed.nbytes else count
    return {weight: count, **dict(_served(names, (*states, *(f"{weight}.{part}" for part in _SERVES_4BIT))))}


@RULES.register(".SCB")
def bitsandbytes_8bit(names: Names, layer: str, read: Read) -> Logical:
    weight = names.get(f"{layer}.weight")
    if weight is None or weight.spec.dtype != "int8":
        return {}
    return {weight.name: weight.elements, **dict(_served(names, (f"{layer}.SCB", f"{layer}.weight_format")))}


@RULES.register(".qweight")
def gptq_or_awq(names: Names, layer: str, read: Read) -> Logical:
    """GPTQ packs along the inputs, AWQ along the outputs; `scales` has one column per output."""
    packed, zeros, scales = (names.get(f"{layer}.{part}") for part in ("qweight", "qzeros", "scales"))
    if packed is None or scales is None or len(packed.spec.shape) != 2 or len(scales.spec.shape) != 2:
        return {}
    outputs = scales.spec.shape[1]
    # From the columns of the zero points, which are packed along the outputs; 4 without zero points.
    bits = 4
    if zeros is not None and len(zeros.spec.shape) == 2 and outputs:
        counted = round(8 * zeros.spec.itemsize * zeros.spec.shape[1] / outputs)
        bits = counted if counted in (2, 3, 4, 8) else 4
    order = names.get(f"{layer}.g_idx")
    if packed.spec.shape[1] != outputs:
        inputs = packed.spec.shape[0]
    elif order is not None and len(order.spec.shape) == 1 and order.elements:
        inputs = order.spec.shape[0]
    else:
        inputs = packed.spec.shape[0] * 8 * packed.spec.itemsize // bits
    serving = (f"{layer}.{part}" for part in ("qzeros", "scales", "g_idx", "perm", "workspace"))
    return {packed.name: inputs * outputs, **dict(_served(names, serving))}


@RULES.register(".weight_packed")
def compressed_tensors(names: Names, layer: str, read: Read) -> Logical:
    packed, shape = names[f"{layer}.weight_packed"], names.get(f"{layer}.weight_shape")
    sizes: list[int] = []
    if shape is not None and (content := read(shape)) is not None:
        width, order = shape.spec.itemsize, "big" if shape.big_endian else "little"
        sizes = [int.from_bytes(content[at : at + width], order) for at in range(0, len(content), width)]  # type: ignore[arg-type]
    # Without the shape, assume the common 4 bits.
    count = prod(sizes) if sizes else 2 * packed.nbytes
    return {packed.name: count if 0 < count <= 16 * packed.nbytes else 2 * packed.nbytes, **_scales_of(names, layer)}


@RULES.register(".weight_scale", ".weight_scale_inv")
def scaled_weight(names: Names, layer: str, read: Read) -> Logical:
    """FP8, INT8 or NVFP4 with scales."""
    weight = names.get(f"{layer}.weight")
    if weight is None or f"{layer}.weight_packed" in names:
        return {}
    per_item = 2 if weight.spec.dtype == "uint8" or weight.spec.dtype == "float4_e2m1fn_x2" else 1
    return {weight.name: per_item * weight.elements, **_scales_of(names, layer)}


def _scales_of(names: Names, layer: str) -> Logical:
    parts = ("scale", "scale_inv", "scale_2", "zero_point", "global_scale", "g_idx", "shape")
    kinds = ("weight", "input", "output", "activation", "k", "v")
    return dict(_served(names, (f"{layer}.{kind}_{part}" for kind in kinds for part in parts)))


@RULES.register("_scale_inv")
def scaled_experts(names: Names, weight: str, read: Read) -> Logical:
    """Stacked experts in FP8, or in FP4 packed in pairs: `gate_up_proj` and `gate_up_proj_scale_inv`."""
    codes, scale = names.get(weight), names[f"{weight}_scale_inv"]
    if codes is None or codes.spec.itemsize > 1:
        return {}
    is_pair = scale.spec.dtype == "float8_e8m0fnu" and codes.spec.dtype in ("int8", "uint8")
    served = _served(names, (scale.name, f"{weight}_activation_scale"))
    return {codes.name: (2 if is_pair else 1) * codes.elements, **dict(served)}


@RULES.register("_blocks")
def mxfp4(names: Names, weight: str, read: Read) -> Logical:
    blocks, scales = names[f"{weight}_blocks"], names.get(f"{weight}_scales")
    if scales is None or blocks.spec.dtype != "uint8" or scales.spec.dtype != "uint8":
        return {}
    return {blocks.name: 2 * blocks.elements, scales.name: 0}


@dataclass(frozen=True, slots=True)
class Place:
    """The bytes of a storage; `offset` is None if they are not contiguous in the file."""

    file: str
    offset: int | None
    size: int
    deflated: Deflated | None = None


Locate = Callable[[Storage], Place]


@dataclass(frozen=True, slots=True)
class Listing:
    entries: tuple[Entry, ...]
    model_prefix: str


def list_entries(found: Sequence[Found], locate: Locate, file: str, *, big_endian: bool = False,
                 is_module: bool = False) -> Listing:  # fmt: skip
    """The entries of all tensors. `locate` returns where the bytes of a storage are; `is_module`: the file is one
    module."""
    paths = [item.path for item in found]
    prefix = () if is_module else find_model_prefix(paths)
    # `{"state": {0: {"exp_avg": …}}, "param_groups": […]}`, as `optimizer.state_dict()` saves it.
    is_optimizer = bool(paths) and all(len(path) == 3 and path[0] == "state" and path[1].isdigit() for path in paths)
    entries: list[Entry] = []
    views: list[View | None] = []
    seen: Counter[str] = Counter()
    for item in found:
        name = ".".join(item.path) or "tensor"
        seen[name] += 1
        if seen[name] > 1:  # different paths can give the same name if keys contain dots
            name = f"{name} ({seen[name]})"
        tensor, storage = item.tensor, item.tensor.storage
        place, view, width = None, None, item_bytes(tensor.dtype)
        if isinstance(storage, Inline):
            place = Place(file, storage.position, storage.size)
            view = View(id(storage), tensor.offset, tensor.shape, tensor.stride, width)
        elif storage is not None:
            place = locate(storage)
            first = tensor.offset + storage.first
            view = View((place.file, storage.key), first, tensor.shape, tensor.stride, width)
        spec = _spec(tensor.shape, tensor.dtype, tensor.stride)
        # A pickled module declares its parameters; next to the model it is still a copy.
        if item.role is not None and item.path[: len(prefix)] == prefix:
            role = item.role
        else:
            role = classify(item.path, spec, prefix, is_optimizer_file=is_optimizer)
        entry = _entry(name, spec, tensor, place, view, role, big_endian)
        entries.append(entry if item.logical is None else with_logical(entry, item.logical))
        views.append(view)
    for number, owner in find_owners(views).items():
        entries[number] = replace(entries[number], shared_with=entries[owner].name)
    return Listing(tuple(entries), ".".join((*prefix, "")) if prefix else "")


@lru_cache(maxsize=4096)
def _spec(shape: tuple[int, ...], dtype: str, stride: tuple[int, ...]) -> TensorSpec:
    """Cached, because many tensors have the same shape and type."""
    return TensorSpec(shape, dtype, None if is_contiguous(shape, stride) else stride)


def _entry(name: str, spec: TensorSpec, tensor: Tensor, place: Place | None, view: View | None, role: Role,
           big_endian: bool) -> Entry:  # fmt: skip
    if place is None or view is None:
        return Entry(name, spec, "", None, 0, role)
    per_byte = VALUES_PER_BYTE.get(tensor.dtype, 1)
    end = 0 if view.is_empty else -(-view.span[1] // per_byte)
    if end > place.size:
        raise FormatError(
            f"the tensor {printable(name)} reaches to byte {end} of a storage of {place.size}; "
            "the file is corrupt or malicious"
        )
    start = view.offset * view.item
    offset = None if place.offset is None else place.offset + start
    deflated = None if place.deflated is None else replace(place.deflated, start=start)
    nbytes = -(-spec.distinct_numel // per_byte) * view.item
    is_big = big_endian or tensor.is_big_endian
    return Entry(name, spec, place.file, offset, nbytes, role, big_endian=is_big, deflated=deflated)


SMALL_BYTES = 4096


def unpack_packed(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    return tuple(unpack(entries, read_small))


def read_small(entry: Entry) -> bytes | None:
    """Read a tensor that describes a packing, such as a shape; never weights."""
    if entry.offset is None or entry.nbytes > SMALL_BYTES:
        return None
    with open(entry.file, "rb") as stream:
        stream.seek(entry.offset)
        return stream.read(entry.nbytes)
