"""Quantized weights of a live model, known by how they are stored and not by their classes.

- a tensor that is made of others, integers or 8-bit floats among them (torchao, quanto);
- a tensor of codes that carries the tensors that restore it, and its shape (bitsandbytes, packed objects of
  `torch.ao`), or whose module has them in a dictionary (HQQ);
- tensors of a module whose names and shapes make a packing that files have too: GPTQ, AWQ, compressed-tensors, FP8 with
  scales, MXFP4 (`checkpoint/entries.py`);
- codes in a linear layer or embedding that says its sizes and has no other weight: every other packing (AQLM, BitNet,
  blocks of GGUF, GPTQ repacked for a kernel).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torchgauge.capture.paths import ModulePaths, Owned
from torchgauge.capture.recorder import spec_of_real
from torchgauge.capture.structure import storage_key, tensors_within
from torchgauge.checkpoint import Entry, Role
from torchgauge.facts import TensorSpec

# Types whose elements are the values themselves, or indices and flags.
_PLAIN = frozenset(
    (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex32, torch.complex64, torch.complex128,
     torch.int64, torch.bool)
)  # fmt: skip
# Attributes of a layer whose product is the number of its weights.
_LINEAR_SIZES = (("in_features", "out_features"), ("infeatures", "outfeatures"))
_SIZES = (*_LINEAR_SIZES, ("num_embeddings", "embedding_dim"))
# Fewer bits of integers for each weight are not its codes: a counter, the order of the inputs.
_MIN_CODE_BITS = 0.5


@dataclass(frozen=True, slots=True)
class Quantized:
    """`logical` is 0 for a tensor that belongs to another (scales); `stored` is empty for a tensor stored directly."""

    logical: int
    stored: tuple[TensorSpec, ...] = ()


def find_quantized(paths: ModulePaths) -> Mapping[str, Quantized]:
    """The quantized weights of a model and what serves them, by name."""
    found: dict[str, Quantized] = {}
    codes = [owned for owned in paths.owned if not _is_plain(owned.tensor)]
    # A bias in a packed object is a weight too, although torch does not register it as a parameter.
    found |= {owned.name: Quantized(owned.tensor.numel()) for owned in paths.owned if owned.is_packed}
    if not codes:
        return found
    modules = {member.path: member.module for member in paths.members}
    for owned in codes:
        parts = list(_parts(owned.tensor))
        if len(parts) > 1 or parts[0] is not owned.tensor:
            found[owned.name] = Quantized(owned.tensor.numel(), _specs(parts))
        elif not owned.is_buffer or owned.is_packed:
            # A tensor of codes, with the tensors that it or its module carries for it.
            module = modules.get(owned.name.rpartition(".")[0])
            tensor, state = owned.tensor, list(vars(owned.tensor).values())
            if not any(True for _ in tensors_within(state)) and isinstance(module, torch.nn.Module):
                # A dictionary of a module that says the shape of the weight it restores.
                state = [value for value in vars(module).values() if isinstance(value, dict) and "shape" in value]
            kept = [part for part in tensors_within(state) if part.dim()]
            shapes = [value["shape"] if isinstance(value, dict) else getattr(value, "shape", None)
                      for value in state if not isinstance(value, torch.Tensor)]  # fmt: skip
            logical = next(
                (prod(shape) for shape in shapes if isinstance(shape, tuple | list) and shape), tensor.numel()
            )
            found[owned.name] = Quantized(logical, _specs([tensor, *kept]) if kept else ())
    found |= _packed_by_name(paths.owned)
    found |= _packed_by_size(paths, found)
    # A layer that keeps its weight in buffers keeps its bias there too.
    buffers = {owned.name: owned.tensor for owned in paths.owned if owned.is_buffer}
    biases = {f"{name[: name.rfind('.') + 1]}bias" for name in buffers.keys() & found.keys()}
    return found | {name: Quantized(buffers[name].numel()) for name in biases & buffers.keys()}


def is_linear(module: object) -> bool:
    """By the sizes it states; libraries define their own classes."""
    return any(all(type(getattr(module, name, None)) is int for name in names) for names in _LINEAR_SIZES)


def _is_plain(tensor: torch.Tensor) -> bool:
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):  # nearly all
        return tensor.dtype in _PLAIN
    return all(part.dtype in _PLAIN for part in _parts(tensor))


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor is made of."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if isinstance(part, torch.Tensor):  # a DTensor names its mesh too
            yield from _parts(part)


def _specs(parts: list[torch.Tensor]) -> tuple[TensorSpec, ...]:
    """The codes first, each memory once."""
    distinct = {storage_key(part) if not part.is_meta else id(part): part for part in parts}.values()
    return tuple(spec_of_real(part) for part in sorted(distinct, key=lambda part: part.dtype in _PLAIN))


def _packed_by_size(paths: ModulePaths, found: Mapping[str, Quantized]) -> dict[str, Quantized]:
    """Layers that say how many weights they have, whatever form their codes are in."""
    by_module: defaultdict[str, list[Owned]] = defaultdict(list)
    for owned in paths.owned:
        by_module[owned.name.rpartition(".")[0]].append(owned)
    sized: dict[str, Quantized] = {}
    for member in paths.members:
        own = by_module[member.path]
        codes = [one for one in own if one.tensor.dtype not in _PLAIN]
        sizes = ([getattr(member.module, name, None) for name in names] for names in _SIZES)
        logical = next((a * b for a, b in sizes if type(a) is int and type(b) is int), 0)
        largest = max(codes, key=lambda one: one.tensor.nbytes, default=None)
        has_plain_weight = any(one.tensor.dtype in _PLAIN and one.tensor.numel() == logical for one in own)
        if largest is None or not logical or has_plain_weight or 8 * largest.tensor.nbytes < _MIN_CODE_BITS * logical:
            continue
        for one in own:
            stored = found[one.name].stored if one.name in found else ()
            if one is largest:
                sized[one.name] = Quantized(logical, stored)
            elif not one.tensor.requires_grad and one.name.rpartition(".")[2] != "bias":
                sized[one.name] = Quantized(0, stored)
    return sized


def _packed_by_name(owned: list[Owned]) -> dict[str, Quantized]:
    from torchgauge.checkpoint.entries import SMALL_BYTES, unpack  # with the formats of files

    # The rules look for a dot: a layer that is the whole model has none in its names.
    tensors = {f".{one.name}": one.tensor for one in owned if not is_traceable_wrapper_subclass(one.tensor)}

    def read(entry: Entry) -> bytes | None:
        tensor = tensors[entry.name]
        if tensor.is_meta or tensor.nbytes > SMALL_BYTES:
            return None
        with torch._C._DisableTorchDispatch():
            return bytes(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())

    entries = []
    for name, tensor in tensors.items():
        spec = spec_of_real(tensor)
        entries.append(Entry(name, spec, "", None, spec.nbytes, Role.PARAMETER))
    counts = {entry.name: entry.logical_elements for entry in unpack(entries, read)}
    # A weight of floats that also has a scale is not quantized.
    plain = {name.rpartition(".")[0] for name, count in counts.items() if count and tensors[name].dtype in _PLAIN}
    return {
        name.removeprefix("."): Quantized(count)
        for name, count in counts.items()
        if count is not None and name.rpartition(".")[0] not in plain
    }
