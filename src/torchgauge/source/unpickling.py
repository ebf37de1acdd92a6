"""`--allow-pickle`: really loading a file that holds a whole module, after saying what that will run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchgauge.checkpoint import Index
from torchgauge.errors import TargetError, UnpicklingWarning
from torchgauge.source.building import rng_untouched
from torchgauge.source.python_code import importable
from torchgauge.source.torchvision_ops import torchvision_importable

# Where trainers keep the module itself; a moving average is what they deploy.
_HOLDERS = ("model", "ema", "module", "net", "network")


def can_unpickle(index: Index) -> bool:
    """Whether unpickling would give a module, and not only the tensors that the index has anyway."""
    return index.format.startswith("torch") and len(index.files) == 1 and bool(index.modules)


def unpickle(index: Index) -> nn.Module:
    """The module in a file. This runs whatever the file says: a warning lists it first."""
    warnings.warn(announcement(index), UnpicklingWarning, stacklevel=2)
    try:
        with importable(Path.cwd()), torchvision_importable(), rng_untouched():
            content = torch.load(index.path, map_location="cpu", weights_only=False)
    # The file's own code runs here: it may raise anything.
    except Exception as error:
        raise TargetError(f"'{index.path}' could not be unpickled: {type(error).__name__}: {error}") from error
    model = next(_modules(content), None)
    if model is None:
        raise TargetError(f"'{index.path}' was unpickled, but holds no model")
    return model


def announcement(index: Index) -> str:
    lines = [f"  {found.verdict.value}: {found.name}{'()' if found.called else ''}" for found in index.imports]
    return "\n".join([f"unpickling '{index.path}', which imports and calls:", *dict.fromkeys(lines)])


def _modules(content: Any) -> Iterator[nn.Module]:
    if isinstance(content, nn.Module):
        yield content
    elif isinstance(content, Mapping):
        ordered = [content[key] for key in _HOLDERS if key in content]
        for value in (*ordered, *content.values()):
            if isinstance(value, nn.Module):
                yield value
