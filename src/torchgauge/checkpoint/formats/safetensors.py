"""safetensors: the length of a JSON header, the header, then the bytes of the tensors without gaps."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from torchgauge.checkpoint.byte_source import ByteSource, parse_json, printable
from torchgauge.checkpoint.dtypes import SAFETENSORS
from torchgauge.checkpoint.entries import unpack_packed
from torchgauge.checkpoint.index import Entry, Index, Role
from torchgauge.checkpoint.limits import DIMENSIONS, INTEGER, SAFETENSORS_HEADER_BYTES
from torchgauge.checkpoint.registry import FILES, opens
from torchgauge.checkpoint.tensor_names import is_buffer
from torchgauge.errors import FormatError
from torchgauge.facts import TensorSpec
from torchgauge.progress import Progress


def is_safetensors(source: ByteSource) -> bool:
    """A plausible length followed by a brace; a truncated file matches too."""
    return source.size > 9 and source.read(8, 1) == b"{" and 2 <= _header_size(source) <= SAFETENSORS_HEADER_BYTES


def _header_size(source: ByteSource) -> int:
    return int.from_bytes(source.read(0, 8), "little")


@opens(FILES, "safetensors", is_safetensors)
def open_safetensors(source: ByteSource, progress: Progress) -> Index:
    size = _header_size(source)
    header = parse_json(source.read(8, size), source.label)
    header.pop("__metadata__", None)
    start = 8 + size
    entries = [_entry(source, start, name, described) for name, described in header.items()]
    # Tensors must follow each other without gaps or overlaps; bytes may be missing at the end.
    at = source.start + start
    for entry in sorted(entries, key=lambda entry: (entry.offset or 0, entry.nbytes)):
        if entry.offset is not None and entry.offset != at:
            problem = "overlaps another one" if entry.offset < at else "follows a gap"
            raise FormatError(f"{source.label}: the tensor {printable(entry.name)} {problem}")
        at += entry.nbytes
    end = source.start + source.size
    if at < end:
        raise FormatError(f"{source.label}: {end - at} bytes after the last tensor do not belong to any")
    missing, warnings = at - end, []
    if missing:
        # The header is complete, so the tensors before the cut can be used.
        complete = sum(0 < entry.nbytes <= end - entry.offset for entry in entries if entry.offset is not None)
        if not complete:
            raise FormatError(f"{source.label}: {missing} bytes are missing at its end; is the download complete?")
        warnings.append(
            f"{source.label}: {missing:,} bytes are missing at its end, and with them {len(entries) - complete:,} of "
            f"{len(entries):,} tensors; is the download complete?"
        )
    return Index(
        path=source.path,
        format="safetensors",
        files=(source.path,),
        entries=unpack_packed(entries),
        warnings=tuple(warnings),
    )


def _entry(source: ByteSource, start: int, name: str, described: object) -> Entry:
    try:
        fields = described if isinstance(described, dict) else {}
        code, shape, offsets = fields.get("dtype"), _sizes(fields.get("shape")), _sizes(fields.get("data_offsets"))
        if not isinstance(code, str) or shape is None or offsets is None or len(offsets) != 2:
            raise FormatError("is not described as the format requires")
        if code not in SAFETENSORS:
            raise FormatError(f"has the type {printable(code)}, which is unknown")
        if offsets[0] > offsets[1]:
            raise FormatError("ends before it begins")
        begin, end = offsets[0], offsets[1]
    except FormatError as error:
        raise FormatError(f"{source.label}: the tensor {printable(name)} {error}") from error
    dtype, bits = SAFETENSORS[code]
    elements = prod(shape)
    if elements * bits != 8 * (end - begin):
        needed = elements * bits // 8
        raise FormatError(f"{source.label}: the tensor {printable(name)} needs {needed} bytes but has {end - begin}")
    spec = _spec(shape, dtype)
    role = Role.BUFFER if is_buffer(name, spec) else Role.PARAMETER
    logical = None if spec.shape == shape else elements
    return Entry(name, spec, source.path, source.position(start + begin), end - begin, role, logical_elements=logical)


@lru_cache(maxsize=4096)
def _spec(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    """Cached. The file counts single 4-bit values; an element of torch's type holds two, so the last dimension is
    halved."""
    if dtype == "float4_e2m1fn_x2" and shape:
        shape = (*shape[:-1], shape[-1] // 2)
    return TensorSpec(shape, dtype)


def _sizes(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > DIMENSIONS:
        return None
    for size in value:
        if type(size) is not int or not 0 <= size <= INTEGER:
            return None
    return tuple(value)
