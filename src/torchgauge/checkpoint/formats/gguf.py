"""GGUF, the format of llama.cpp: metadata, the list of tensors, then their bytes, aligned.

Quantized tensors consist of blocks of a few bytes for 32 to 256 values. An entry has the bytes, one row per row of the
matrix, the number of values in `logical_elements` and the type in `encoding`.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import prod

from torchgauge.checkpoint.byte_source import ByteSource, printable
from torchgauge.checkpoint.index import Entry, Index, Role
from torchgauge.checkpoint.limits import GGUF_ARRAY_ITEMS, GGUF_HEADER_BYTES, GGUF_TEXT_BYTES, INTEGER
from torchgauge.checkpoint.registry import FILES, opens
from torchgauge.errors import FormatError
from torchgauge.facts import TensorSpec
from torchgauge.progress import Progress

# Types that are plain numbers, by their code in the file.
PLAIN: Mapping[int, str] = {
    0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64", 30: "bfloat16",
}  # fmt: skip
# Code -> name, values per block, bytes per block: `GGML_QUANT_SIZES` of ggml.
BLOCKS: Mapping[int, tuple[str, int, int]] = {
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
# Types in the metadata: code -> format of `struct`.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_MAX_ARRAY_DEPTH = 4
_CHUNK_BYTES = 1 << 20
_DEFAULT_ALIGNMENT_BYTES = 32


class _Reader:
    """Reads numbers and strings in sequence, a megabyte at a time. Counts are untrusted: a count that does not fit into
    the rest of the file is refused."""

    def __init__(self, source: ByteSource) -> None:
        self._source, self.at = source, 4
        self._data, self._start = b"", 0
        version = struct.unpack("<I", source.read(4, 4))[0]
        # The version is a small number, so its nonzero byte shows the byte order.
        self._order = "<" if version & 0xFFFF else ">"
        self.version = self.number("I")
        if self.version not in (2, 3):
            raise FormatError(f"{source.label}: GGUF version {self.version} is not supported; only 2 and 3 are")

    @property
    def is_big_endian(self) -> bool:
        return self._order == ">"

    def take(self, count: int) -> bytes:
        if self.at + count > GGUF_HEADER_BYTES:
            raise FormatError(f"{self._source.label}: its header is longer than {GGUF_HEADER_BYTES >> 20} MiB")
        begin = self.at - self._start
        if begin < 0 or begin + count > len(self._data):
            size = min(max(count, _CHUNK_BYTES), max(self._source.size - self.at, 0))
            self._data, self._start, begin = self._source.read(self.at, max(size, count)), self.at, 0
        self.at += count
        return self._data[begin : begin + count]

    def scalar(self, code: str) -> float | bool:
        number: float | bool = struct.unpack(self._order + code, self.take(struct.calcsize(self._order + code)))[0]
        return number

    def number(self, code: str) -> int:
        return int(self.scalar(code))

    def count(self, what: str, least: int) -> int:
        """A count of items of at least `least` bytes each."""
        number = self.number("Q")
        if number * least > self._source.size - self.at:
            raise FormatError(f"{self._source.label}: {number:,} {what} do not fit in its {self._source.size:,} bytes")
        return number

    def text(self) -> str:
        size = self.count("bytes of text", 1)
        data = self.take(min(size, GGUF_TEXT_BYTES))
        self.at += size - len(data)
        return data.decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> object:
        """The value; only the length of a long array, and only the start of a long text."""
        if kind == _TEXT:
            return self.text()
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind != _ARRAY or depth == _MAX_ARRAY_DEPTH:
            raise FormatError(f"{self._source.label}: metadata of the unknown type {kind}")
        inner = self.number("I")
        size = struct.calcsize(self._order + _SCALARS[inner]) if inner in _SCALARS else 8
        count = self.count("values of an array", size)
        if inner in _SCALARS and count > GGUF_ARRAY_ITEMS:
            self.at += count * size
            return {"length": count}
        items = []
        for _ in range(count):
            item = self.value(inner, depth + 1)
            if count <= GGUF_ARRAY_ITEMS:
                items.append(item)
        return items if count <= GGUF_ARRAY_ITEMS else {"length": count}


@opens(FILES, "gguf", lambda source: source.size >= 8 and source.read(0, 4) == b"GGUF")
def open_gguf(source: ByteSource, progress: Progress) -> Index:
    reader = _Reader(source)
    tensors = reader.count("tensors", 24)
    fields = reader.count("metadata fields", 13)
    metadata: dict[str, object] = {}
    for _ in range(fields):
        key = printable(reader.text())
        metadata[key] = reader.value(reader.number("I"))
    described = []
    for _ in range(tensors):
        name, dimensions = reader.text(), reader.number("I")
        if dimensions > 8:
            raise FormatError(
                f"{source.label}: the tensor {printable(name)} has {dimensions} dimensions; the most is 4"
            )
        # The file lists the dimension that varies fastest first.
        shape = tuple(reader.number("Q") for _ in range(dimensions))[::-1]
        described.append((name, shape, reader.number("I"), reader.number("Q")))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT_BYTES)
    if type(alignment) is not int or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise FormatError(f"{source.label}: an alignment of {printable(str(alignment))} bytes is not a power of two")
    start = -(-reader.at // alignment) * alignment
    entries = [_entry(source, start, reader.is_big_endian, *one) for one in described]
    missing = _check_places(source, entries)
    return Index(
        path=source.path,
        format="gguf",
        files=(source.path,),
        entries=tuple(entries),
        archive=_shown_metadata(metadata, reader.version),
        gguf=metadata,
        warnings=missing,
    )


def _entry(
    source: ByteSource, start: int, big_endian: bool, name: str, shape: tuple[int, ...], code: int, offset: int
) -> Entry:
    elements = prod(shape)
    if elements > INTEGER or offset > INTEGER or any(size > INTEGER for size in shape):
        raise FormatError(f"{source.label}: the tensor {printable(name)} is larger than any file")
    if code in PLAIN:
        spec, encoding, logical = TensorSpec(shape, PLAIN[code]), None, None
    elif code in BLOCKS:
        encoding, values, nbytes = BLOCKS[code]
        if not shape or shape[-1] % values:
            raise FormatError(
                f"{source.label}: rows of the tensor {printable(name)} are not blocks of {values} values ({encoding})"
            )
        spec, logical = TensorSpec((*shape[:-1], shape[-1] // values * nbytes), "uint8"), elements
    else:
        raise FormatError(f"{source.label}: the tensor {printable(name)} has the type {code}, which is unknown")
    return Entry(
        name,
        spec,
        source.path,
        source.position(start + offset),
        spec.nbytes,
        Role.BUFFER if name.startswith("rope_") else Role.PARAMETER,
        logical_elements=logical,
        big_endian=big_endian,
        encoding=encoding,
    )


def _check_places(source: ByteSource, entries: list[Entry]) -> tuple[str, ...]:
    """Check that tensors do not overlap; returns a warning if the end of the file is missing."""
    end, at, lost = source.start + source.size, 0, 0
    for entry in sorted(entries, key=lambda entry: (entry.offset or 0, entry.nbytes)):
        place = entry.offset or 0
        if place < at and entry.nbytes:
            raise FormatError(f"{source.label}: the tensor {printable(entry.name)} overlaps another one")
        at = place + entry.nbytes
        lost += at > end
    if lost and lost == len(entries):
        raise FormatError(f"{source.label}: the bytes of all {lost:,} tensors are missing; is the download complete?")
    if not lost:
        return ()
    return (
        f"{source.label}: {at - end:,} bytes are missing at its end, and with them {lost:,} of {len(entries):,} "
        "tensors; is the download complete?",
    )


def _shown_metadata(metadata: Mapping[str, object], version: int) -> dict[str, str]:
    """The metadata for reports: plain values, and the size of the tokenizer."""
    found = {"GGUF version": str(version)}
    for key, value in metadata.items():
        if key.startswith("tokenizer."):
            continue
        if isinstance(value, str | int | float | bool):
            found[key] = printable(str(value))[:200]
    tokens = metadata.get("tokenizer.ggml.tokens")
    size = tokens.get("length") if isinstance(tokens, dict) else len(tokens) if isinstance(tokens, list) else None
    if size is not None:
        kind = metadata.get("tokenizer.ggml.model")
        found["tokenizer"] = f"{printable(kind) if isinstance(kind, str) else 'tokens'}, {size:,} tokens"
    return found
