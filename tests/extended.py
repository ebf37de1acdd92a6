"""A copy of the package with an addition, run in a separate process, as a contributor would do it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torchgauge

SOURCE = Path(torchgauge.__file__).parent
ROOT = SOURCE.parent.parent


def copy_package(folder: Path) -> Path:
    """The copy, below `folder`."""
    copy = folder / "torchgauge"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def run_with(folder: Path, *arguments: str) -> str:
    """The output of Python with the package below `folder`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
