"""Puts fake tensors in the place of a model's tensors for the length of a run; `untouched` puts the originals back."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Any

import torch

from torchgauge.capture.fake_run import FakeRun
from torchgauge.capture.paths import Inlined, ModulePaths

# Most attributes of most modules; one look at the type settles them.
_NO_TENSORS = frozenset((bool, int, float, str, type(None), dict, OrderedDict, set))


def swap_tensors(paths: ModulePaths, run: FakeRun, dtype: torch.dtype | None) -> None:
    """Parameters, buffers, and tensors held in plain attributes (an RNN keeps a list of its weights)."""
    for owned in paths.owned:
        run.adopt(owned.tensor, name=owned.name, dtype=dtype)
    for member in paths.members:
        if not isinstance(member.module, torch.jit.ScriptModule | Inlined):
            module = member.module
            for kind in ("_parameters", "_buffers"):
                registry = getattr(module, kind)
                if type(registry) not in (dict, OrderedDict):
                    # A mapping of a library would move to another device what is put into it.
                    registry = module.__dict__[kind] = dict(registry.items())
                registry.update({name: run.adopt(tensor) for name, tensor in registry.items() if tensor is not None})
            for name, value in module.__dict__.items():
                if type(value) in _NO_TENSORS:
                    continue
                if isinstance(value, torch.Tensor):
                    module.__dict__[name] = run.adopt(value)
                elif isinstance(value, list | tuple) and any(_tensor(item) is not None for item in value):
                    module.__dict__[name] = [_swapped(item, run) for item in value]


def _swapped(item: Any, run: FakeRun) -> Any:
    tensor = _tensor(item)
    if tensor is None:
        return item
    fake = run.adopt(tensor)
    return weakref.ref(fake) if isinstance(item, weakref.ref) else fake


def _tensor(item: Any) -> torch.Tensor | None:
    """The tensor that an item is or refers to: an RNN keeps weak references too, to see whether its weights changed."""
    target = item() if isinstance(item, weakref.ref) else item
    return target if isinstance(target, torch.Tensor) else None
