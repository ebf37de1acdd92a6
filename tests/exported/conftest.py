"""torchvision must be importable before the test files here import it."""

from __future__ import annotations

import importlib
import warnings

from torchgauge.source import torchvision_importable

with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)
    with torchvision_importable():
        importlib.import_module("torchvision")
