"""Open a single file by its content; the suffix is ignored."""

from __future__ import annotations

import os

from torchgauge.checkpoint.byte_source import opened
from torchgauge.checkpoint.formats.torch_zip import is_cut_archive, open_cut_archive
from torchgauge.checkpoint.index import Index
from torchgauge.checkpoint.registry import ARCHIVES, FILES, find_format
from torchgauge.checkpoint.signatures import describe, not_a_model
from torchgauge.checkpoint.zip_archive import ZIP_MARK, ZipArchive, has_directory
from torchgauge.errors import FormatError, one_line
from torchgauge.progress import Progress


def open_file(path: str, progress: Progress) -> Index:
    with opened(path) as source:
        try:
            if source.head(4) == ZIP_MARK:
                is_cut = is_cut_archive(source)
                return open_cut_archive(source) if is_cut else _open_archive(ZipArchive(source), progress)
            found = find_format(FILES, source)
            if found is not None:
                return found.opens(source, progress)
            if has_directory(source):
                return _open_archive(ZipArchive(source), progress)
            raise not_a_model(source.label, describe(source))
        except FormatError as error:
            # Prefix the error with the path, and name dangerous imports before the point of failure.
            # The message has names as text.
            place, name, message = one_line(path), one_line(os.path.basename(path)), str(error)
            if place not in message:
                message = f"{place}{message[len(name) :]}" if message.startswith(name) else f"{place}: {message}"
            dangerous = sorted({item.name for item in error.imports if item.verdict.value == "dangerous"})
            if dangerous and "would import" not in message:
                message += f". Do not load it: it would import {', '.join(dangerous[:5])}"
            raise FormatError(message, imports=error.imports, looks_like=error.looks_like) from error


def _open_archive(archive: ZipArchive, progress: Progress) -> Index:
    found = find_format(ARCHIVES, archive)
    if found is None:
        raise not_a_model(archive.source.label, describe(archive.source))
    return found.opens(archive, progress)


def open_files(folder: str, names: list[str], progress: Progress) -> list[Index]:
    """Several files of one checkpoint; `progress` is called for each."""
    indexes = []
    for number, name in enumerate(names):
        progress(number, len(names), name)
        indexes.append(open_file(os.path.join(folder, name), progress))
    progress(len(names), len(names), "")
    return indexes


def sniff_file(path: str) -> str | None:
    with opened(path) as source:
        try:
            if source.head(4) != ZIP_MARK:
                found = find_format(FILES, source)
                if found is not None or not has_directory(source):
                    return None if found is None else found.name
            if is_cut_archive(source):
                return "torch"
            archive = find_format(ARCHIVES, ZipArchive(source))
            return None if archive is None else archive.name
        except FormatError:
            return None
