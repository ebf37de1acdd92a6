"""torchvision must be importable before the test files here import it."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path

import pytest

from torchgauge.source import torchvision_importable

with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)
    with torchvision_importable():
        importlib.import_module("torchvision")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
