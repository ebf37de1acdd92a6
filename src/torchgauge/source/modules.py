"""Fast access to the modules of a model: torch's iterator nests a generator per level."""

from __future__ import annotations

import torch
from torch import nn


def all_modules(model: nn.Module) -> list[nn.Module]:
    """The modules of `model.modules()`, in the same order."""
    found: dict[int, nn.Module] = {}
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is None or (key := id(module)) in found:
            continue
        found[key] = module
        children = module._modules
        if children:
            waiting += reversed(list(children.values()))
    return list(found.values())


def has_attribute(module: nn.Module, name: str) -> bool:
    """`hasattr` for attributes that are not parameters, buffers or children, without torch's slow internal error."""
    if isinstance(module, torch.jit.ScriptModule):
        return hasattr(module, name)
    return name in module.__dict__ or hasattr(type(module), name)
