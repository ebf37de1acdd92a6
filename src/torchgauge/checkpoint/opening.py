"""Open a checkpoint of any format. Importing this module registers all formats."""

from __future__ import annotations

import os
from functools import partial

from torchgauge.checkpoint.byte_source import opened
from torchgauge.checkpoint.folders import distributed, ranked, sharded
from torchgauge.checkpoint.folders.listing import unrelated_files
from torchgauge.checkpoint.folders.side_files import with_adapter, with_trainer_files
from torchgauge.checkpoint.formats import exported, gguf, legacy, safetensors, torch_zip, torchscript
from torchgauge.checkpoint.index import Index
from torchgauge.checkpoint.registry import FOLDERS, find_format, silent
from torchgauge.checkpoint.signatures import describe, describe_folder
from torchgauge.checkpoint.single_file import open_file, sniff_file
from torchgauge.errors import FormatError
from torchgauge.progress import Progress
from torchgauge.registry import collector_paused

# Importing a format registers it.
FORMAT_MODULES = (distributed, gguf, legacy, safetensors, torch_zip, exported, torchscript, ranked, sharded)


def open_checkpoint(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Index:
    """The tensors of a file or folder and where their bytes are, from its headers. Nothing in it is executed.

    Raises `FormatError` if the file cannot be read; its `imports` are those of the pickle up to the error. `progress`
    is called with the number of parts done, the total, and the name of the current part.
    """
    with collector_paused():
        return _open(os.fspath(path), progress or silent)


def _open(place: str, report: Progress, *, is_base: bool = False) -> Index:
    """`is_base`: the base model of an adapter, whose own base is not followed."""
    open_base = partial(_open, report=silent, is_base=True)
    if not os.path.isdir(place):
        index = open_file(place, report)
        return index if is_base else with_adapter(index, os.path.dirname(place), open_base)
    try:
        found = find_format(FOLDERS, place)
        if found is None:
            empty = f"{place} is {describe_folder(place)}; expected a folder with a PyTorch checkpoint"
            raise unrelated_files(place) or FormatError(empty)
        index = with_trainer_files(found.opens(place, report), place)
        return index if is_base else with_adapter(index, place, open_base)
    except OSError as error:
        raise FormatError(f"{place} could not be read: {error.strerror or error}") from error


def sniff(path: str | os.PathLike[str]) -> str | None:
    """The format of a file or folder, by its content; None if it cannot be opened."""
    place = os.fspath(path)
    if os.path.isdir(place):
        found = find_format(FOLDERS, place)
        return None if found is None else found.name
    return sniff_file(place)


def describe_unknown(path: str | os.PathLike[str]) -> str:
    """A description of the file, such as "a PNG image"."""
    place = os.fspath(path)
    if os.path.isdir(place):
        return describe_folder(place)
    with opened(place) as source:
        return describe(source)
