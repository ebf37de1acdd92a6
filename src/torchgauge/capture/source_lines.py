"""The line of the model's code that an op is called from."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

import torch

import torchgauge

# Frames of these packages are not the model's code.
_OWN = tuple(str(Path(str(package.__file__)).parent / "_")[:-1] for package in (torch, torchgauge))
_RUNS_MODEL = "call_model"
_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")

# By the name of a code object's file, the name to report; None for frames to skip.
_known: dict[str, str | None] = {}


def model_line() -> str | None:
    """`file.py:LINE` of the innermost frame that is neither torch's nor ours, with the folders from the package on for
    installed packages; None where there is no such frame, as in a Sequential of torch's layers. About 1 µs."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        if file not in _known:
            _known[file] = _told(file)
        name = _known[file]
        if name is not None:
            return f"{name}:{frame.f_lineno}"
        if code.co_name == _RUNS_MODEL:
            return None  # beyond is the caller of the analysis
        frame = frame.f_back
    return None


def _told(file: str) -> str | None:
    if file.startswith((*_OWN, "<")):
        return None
    return _PACKAGES.sub("", file).replace("\\", "/") if _PACKAGES.match(file) else Path(file).name
