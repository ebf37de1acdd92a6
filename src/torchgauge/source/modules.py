"""Fast access to the modules of a model: torch's iterator nests a generator per level."""

from __future__ import annotations

import torch
from torch import nn


def all_modules(model: nn.Module) -> list[nn.Module]:
    """The modules of `model.modules()`, in the same order."""
    found: list[nn.Module] = []
    known: set[int] = set()
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in known:
            known.add(id(module))
            found.append(module)
            children = module._modules
            if children:
                waiting += reversed(list(children.values()))
    return found


def has_attribute(module: nn.Module, name: str) -> bool:
    """`hasattr` for attributes that are not parameters, buffers or children, without torch's slow internal error."""
    if isinstance(module, torch.jit.ScriptModule):
        return hasattr(module, name)
    return name in module.__dict__ or hasattr(type(module), name)
