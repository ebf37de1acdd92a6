"""A model that can be run for real, with the values of its files or with random ones.

Stored tensors are read from their offsets in the files; nothing is unpickled.
"""

from __future__ import annotations

import copy
import sys
import zlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
import torch
from torch import nn
from torch.jit import ScriptModule

from torchgauge.checkpoint import Entry
from torchgauge.checkpoint.dtypes import VALUES_PER_BYTE, item_bytes
from torchgauge.checkpoint.limits import INFLATION_RATIO
from torchgauge.errors import FormatError, InputError
from torchgauge.source.candidate import model_dtype
from torchgauge.source.exported import ExportedModel, load_exported
from torchgauge.source.exported.plain_program import PlainProgram
from torchgauge.source.source import Source
from torchgauge.source.state_names import find_fit, model_entries
from torchgauge.source.torchscript import load_torchscript
from torchgauge.units import format_bytes

RANDOM = "random weights, not those of a trained model"
AS_BUILT = "the weights are the initial ones that the code sets"

# Memory for building and filling a model, relative to its size: the model and a tensor or two.
_MEMORY_MARGIN = 1.2


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model with values; `notes` describe their origin. `is_owned`: it was created here."""

    model: nn.Module
    notes: tuple[str, ...] = ()
    is_owned: bool = True


def load_real_model(source: Source) -> RealModel:
    """The model to run. The user's model is never modified."""
    model, index = source.runnable, source.index
    if index is not None and isinstance(model, ScriptModule):
        return RealModel(_script(model, index.path))
    if isinstance(model, ExportedModel):
        program = PlainProgram(_exported(source) if index is not None else model)
        return RealModel(program, is_owned=index is not None)
    if index is not None and not source.is_unpickled:
        return _filled(source)
    if _is_valueless(model):
        return RealModel(_built(source), (RANDOM,))
    if source.record.kind == "registry":
        return RealModel(model, (RANDOM,))
    return RealModel(model, (AS_BUILT,) if ":" in source.record.name else (), is_owned=False)


def runs_allowed(source: Source) -> Source:
    """The source of a file's program that the user allows to run: an analysis may then run it too if the program reads
    its data."""
    model, index = source.model, source.index
    if index is not None and isinstance(model, ScriptModule):
        return replace(source, build_real=partial(_script, model, index.path))
    if index is not None and isinstance(model, ExportedModel):
        return replace(source, build_real=partial(_exported, source))
    return source


def _is_valueless(model: nn.Module) -> bool:
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def _script(model: ScriptModule, path: str) -> nn.Module:
    """With its tensors in memory; those of the analysed model are mapped from the file."""
    _require_room(model)
    return load_torchscript(path, values=True)


def _exported(source: Source) -> ExportedModel:
    _require_room(source.runnable)
    entries = {entry.name: entry for entry in source.stored.entries}

    def stored_values(name: str) -> torch.Tensor | None:
        return read_tensor(entries[name]) if name in entries else None

    model = load_exported(source.stored.path, values=stored_values)
    missing = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    if missing:
        raise InputError(f"'{source.record.name}' does not contain the values of {missing[0]}, so it cannot be run")
    return model


def _built(source: Source) -> nn.Module:
    """Built again, in the type of the analysed model."""
    if source.build_real is None:
        raise InputError(
            "its parameters are on the meta device and have no values, so it cannot be run: "
            "give it real ones (for example model.to_empty(device='cpu'))"
        )
    _require_room(source.runnable)
    model = source.build_real()
    dtype = model_dtype(source.runnable)
    return model if model_dtype(model) == dtype else model.to(dtype)


def _require_room(model: nn.Module) -> None:
    needed = _MEMORY_MARGIN * sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    free = psutil.virtual_memory().available
    if needed > free:
        raise InputError(
            f"the weights need {format_bytes(int(needed))} of memory, but only {format_bytes(free)} are free: use a "
            "smaller model or a larger machine"
        )


def _filled(source: Source) -> RealModel:
    """The model of the code with the values of the file, matched by name."""
    model = source.runnable
    real = _built(source) if _is_valueless(model) else copy.deepcopy(model)
    stored = model_entries(source.stored)
    lead = find_fit(real, {name: entry.spec.shape for name, entry in stored.items()}).lead
    entries = {name.removeprefix(lead): entry for name, entry in stored.items()}
    state = {name: tensor for name, tensor in real.state_dict().items() if isinstance(tensor, torch.Tensor)}
    filled: set[int] = set()
    with torch.no_grad():
        for name, tensor in state.items():
            entry = entries.get(name)
            # Packed values do not fit: the model would have to be built for them.
            if entry is not None and entry.spec.shape == tuple(tensor.shape) and entry.logical_elements is None:
                tensor.copy_(read_tensor(entry))
                filled.add(tensor.data_ptr())
    left = [name for name, tensor in state.items() if tensor.data_ptr() not in filled and tensor.numel()]
    if not left:
        return RealModel(real)
    note = f"{len(left):,} of {len(state):,} tensors keep their initial values: the files have no {left[0]}"
    return RealModel(real, (note,))


# Types by name; types that this version of torch lacks are missing.
_DTYPES = {str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


def read_tensor(entry: Entry) -> torch.Tensor:
    """A new tensor. Raises `FormatError` if the values are not stored, or in an unknown format."""
    dtype = _DTYPES.get(entry.spec.dtype)
    if dtype is None or entry.spec.dtype in VALUES_PER_BYTE:
        raise FormatError(f"{entry.name}: values of type {entry.spec.dtype} cannot be read")
    if not entry.elements:
        return torch.empty(entry.spec.shape, dtype=dtype)
    if entry.chunks:
        whole = torch.empty(entry.spec.shape, dtype=dtype)
        filled = 0
        for chunk in entry.chunks:
            if chunk.offset is None:
                raise FormatError(f"{entry.name}: a part of it is compressed")
            chunk_content = _read(chunk.file, chunk.offset, chunk.nbytes, entry.name)
            part = _typed(chunk_content, entry, dtype).reshape(chunk.shape)
            whole[tuple(slice(at, at + size) for at, size in zip(chunk.corner, chunk.shape, strict=True))] = part
            filled += part.numel()
        if filled < whole.numel():
            raise FormatError(f"{entry.name}: its parts do not add up to the whole")
        return whole
    flat = _typed(_content(entry), entry, dtype)
    if entry.spec.stride is None:
        return flat.reshape(entry.spec.shape)
    return flat.as_strided(entry.spec.shape, entry.spec.stride).clone()


def _content(entry: Entry) -> bytearray:
    spec, record = entry.spec, entry.deflated
    span = spec.numel
    if spec.stride is not None:
        span = 1 + sum((size - 1) * step for size, step in zip(spec.shape, spec.stride, strict=True))
    nbytes = span * item_bytes(spec.dtype)
    if record is not None:
        if record.size > INFLATION_RATIO * max(record.packed, 1):
            raise FormatError(f"{entry.name}: its record unpacks to more than deflate can compress: a zip bomb?")
        packed = _read(entry.file, record.offset, record.packed, entry.name)
        try:
            content = zlib.decompressobj(-15).decompress(packed, record.start + nbytes)
        except zlib.error as error:
            raise FormatError(f"{entry.name}: its compressed record is corrupt: {error}") from error
        return _whole(bytearray(content[record.start :]), nbytes, entry.name)
    if entry.offset is None:
        raise FormatError(f"{entry.name}: its values are not stored")
    return _read(entry.file, entry.offset, nbytes, entry.name)


def _read(file: str, offset: int, nbytes: int, name: str) -> bytearray:
    try:
        with Path(file).open("rb") as stream:
            stream.seek(offset)
            return _whole(bytearray(stream.read(nbytes)), nbytes, name)
    except OSError as error:
        raise FormatError(f"cannot read '{file}': {error.strerror or error}") from error


def _whole(content: bytearray, nbytes: int, name: str) -> bytearray:
    if len(content) != nbytes:
        raise FormatError(f"{name}: {nbytes - len(content):,} of its bytes are missing: is the file cut off?")
    return content


def _typed(content: bytearray, entry: Entry, dtype: torch.dtype) -> torch.Tensor:
    if entry.big_endian == (sys.byteorder == "big") or dtype.itemsize == 1:
        return torch.frombuffer(content, dtype=dtype)
    width = dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize
    return torch.frombuffer(content, dtype=torch.uint8).view(-1, width).flip(1).contiguous().view(-1).view(dtype)
