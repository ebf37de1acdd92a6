"""The line of the model's code that an op is called from."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import torch

import torchgauge

# Frames of these packages are not the model's code.
_OWN = tuple(f"{Path(str(package.__file__)).parent}/" for package in (torch, torchgauge))
_RUNS_MODEL = "call_model"

_is_own: dict[str, bool] = {}


def model_line() -> str | None:
    """`file.py:LINE` of the innermost frame that is neither torch's nor ours; None where the model has no such frame,
    as a Sequential of torch's layers. About 1 µs."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        own = _is_own.get(file)
        if own is None:
            own = _is_own[file] = file.startswith((*_OWN, "<"))
        if not own:
            return f"{file.rpartition('/')[2]}:{frame.f_lineno}"
        if code.co_name == _RUNS_MODEL:
            return None  # beyond is the caller of the analysis
        frame = frame.f_back
    return None
