"""The line of the model's code that an op is called from."""

from __future__ import annotations

import linecache
import os
import re
import sys
from pathlib import Path
from types import FrameType

import torch

import torchgauge

# Frames of these packages are not the model's code.
_OWN = tuple(str(Path(str(package.__file__)).parent / "_")[:-1] for package in (torch, torchgauge))
# Nor is Python's library, below which packages are installed.
_PYTHON = str(Path(os.__file__).parent / "_")[:-1]
_RUNS_MODEL = "call_model"
_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")

# By the name of a code object's file, the name to report; None for frames to skip.
_known: dict[str, str | None] = {}


def model_line() -> str | None:
    """`file.py:LINE` of the innermost frame that is neither torch's nor Python's nor ours, with the folders from the
    package on for installed packages; None where there is none, as in a Sequential of torch's layers. About 1 µs."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        line = source_line(file, frame.f_lineno)
        if line is not None:
            return line
        if code.co_name == _RUNS_MODEL:
            return None  # beyond is the caller of the analysis
        frame = frame.f_back
    return None


def source_line(file: str, line: int | None) -> str | None:
    """The same for a file and a line; None where it is not the model's code."""
    if file not in _known:
        _known[file] = _told(file)
    name = _known[file]
    return name if name is None else f"{name}:{line}"


def source_text(name: str) -> str | None:
    """The text of the file that is reported by this name; None where it is not on this machine, or several are."""
    files = [file for file, told in _known.items() if told == name and Path(file).is_file()]
    text = "".join(linecache.getlines(files[0])) if len(files) == 1 else ""
    return text or None


def is_python_library(file: str) -> bool:
    return file.startswith(_PYTHON) and not _PACKAGES.match(file)


def _told(file: str) -> str | None:
    # The code of a TorchScript archive is made from the model's.
    if not file or "__torch__" in Path(file).parts or file.startswith((*_OWN, "<")) or is_python_library(file):
        return None
    if not _PACKAGES.match(file):
        return Path(file).name
    name = _PACKAGES.sub("", file).replace("\\", "/")
    return None if name.startswith("torch/") else name  # of another machine, in a script
