"""Metadata of a model archive: versions, byte order, identity, extra files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchgauge.checkpoint.file_text import parse_json, printable
from torchgauge.checkpoint.zip_archive import ZipArchive, read_record
from torchgauge.errors import FormatError

_PROGRAM_BYTES = 2**26
_NAMES = 100
# The record of each value; the version of the container is in one of two records.
_RECORDS = {
    "archive_format": "archive_format",
    "archive_version": "archive_version",
    "file_version": "version",
    "data_version": ".data/version",
    "format_version": ".format_version",
    "byteorder": "byteorder",
    "storage_alignment": ".storage_alignment",
    "serialization_id": ".data/serialization_id",
}


def archive_metadata(archive: ZipArchive, program: str | None = None) -> dict[str, str]:
    """All values as text, by name; `program` is the record of an exported program."""
    found = {key: text for key, name in _RECORDS.items() if (text := _text(archive, name))}
    folder = f"{archive.root}extra/"
    extra = [printable(name.removeprefix(folder)) for name in archive.names() if name.startswith(folder)][:_NAMES]
    if extra:
        found["extra_files"] = ", ".join(extra)
    if program is not None:
        found |= dict(_program_metadata(archive, program))
    return found


def _text(archive: ZipArchive, name: str) -> str:
    content = read_record(archive, archive.root + name)
    return "" if content is None else printable(content.decode("utf-8", "replace").strip())


def _program_metadata(archive: ZipArchive, name: str) -> Iterator[tuple[str, str]]:
    record = archive.find(name)
    if record is None or record.size > _PROGRAM_BYTES:
        return
    try:
        document = parse_json(archive.read(record), f"{archive.source.label}:{printable(name)}")
    except FormatError as error:
        archive.warnings.append(str(error))
        return
    for key in ("torch_version", "dialect"):
        if isinstance(document.get(key), str):
            yield key, printable(document[key])
    for key, separator in (("schema_version", "."), ("opset_version", ", ")):
        if isinstance(document.get(key), dict):
            yield key, printable(separator.join(_numbers(document[key], named=key == "opset_version")))


def _numbers(entries: dict[str, Any], *, named: bool) -> Iterator[str]:
    """`8.20` for major and minor, `aten 10` for opsets."""
    return (f"{name} {value}" if named else str(value) for name, value in entries.items() if isinstance(value, int))
