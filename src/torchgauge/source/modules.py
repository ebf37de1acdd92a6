"""Fast access to the modules of a model: torch's iterator nests a generator per level."""

from __future__ import annotations

import torch
from torch import nn


def all_modules(model: nn.Module) -> list[nn.Module]:
    """The modules of `model.modules()`, in the same order."""
    found: dict[int, nn.Module] = {id(model): model}
    # The children of each level that are still to come: models may be nested deeper than Python may call itself.
    levels = [iter(model._modules.values())]
    while levels:
        for module in levels[-1]:
            if module is None or (key := id(module)) in found:
                continue
            found[key] = module
            if module._modules:
                levels.append(iter(module._modules.values()))
                break
        else:
            levels.pop()
    return list(found.values())


def has_attribute(module: nn.Module, name: str) -> bool:
    """`hasattr` for attributes that are not parameters, buffers or children, without torch's slow internal error."""
    if isinstance(module, torch.jit.ScriptModule):
        return hasattr(module, name)
    return name in module.__dict__ or hasattr(type(module), name)
