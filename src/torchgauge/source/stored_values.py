"""The values of stored tensors, read from their places in the files: nothing is unpickled."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import torch

from torchgauge.checkpoint import Entry
from torchgauge.checkpoint.dtypes import VALUES_PER_BYTE, item_bytes
from torchgauge.checkpoint.limits import INFLATION_RATIO
from torchgauge.errors import FormatError

# By the names that files have for them; those of types that this torch lacks are not in it.
_DTYPES = {str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


def read_tensor(entry: Entry) -> torch.Tensor:
    """A new tensor. Raises `FormatError` where the values are not stored, or not in a way that is known."""
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
            raise FormatError(f"{entry.name}: its parts do not make up the whole")
        return whole
    flat = _typed(_content(entry), entry, dtype)
    if entry.spec.stride is None:
        return flat.reshape(entry.spec.shape)
    return flat.as_strided(entry.spec.shape, entry.spec.stride).clone()


def _content(entry: Entry) -> bytearray:
    spec, item = entry.spec, item_bytes(entry.spec.dtype)
    stride = spec.stride
    span = spec.numel if stride is None else 1 + sum((n - 1) * t for n, t in zip(spec.shape, stride, strict=True))
    if entry.deflated is not None:
        nbytes = span * item
        record = entry.deflated
        assert record is not None
        if record.size > INFLATION_RATIO * max(record.packed, 1):
            raise FormatError(f"{entry.name}: its record unpacks to more than compression can explain: a zip bomb?")
        packed = _read(entry.file, record.offset, record.packed, entry.name)
        try:
            content = zlib.decompressobj(-15).decompress(packed, record.start + nbytes)
        except zlib.error as error:
            raise FormatError(f"{entry.name}: its compressed record is damaged: {error}") from error
        return _whole(bytearray(content[record.start :]), nbytes, entry.name)
    if entry.offset is None:
        raise FormatError(f"{entry.name}: its values are not stored")
    return _read(entry.file, entry.offset, span * item, entry.name)


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
