"""The model that an object holds: a pipeline, a trainer, a module without a forward around another (`YOLO.model`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_DEEPEST = 4


@dataclass(frozen=True, slots=True)
class HeldModel:
    model: nn.Module
    warnings: tuple[str, ...] = ()


def find_model(target: Any) -> HeldModel | None:
    """A module that can be called, `target` itself or the largest one in its attributes; None where there is none."""
    value, path, others = target, list[str](), list[str]()
    for _ in range(_DEEPEST):
        is_module = isinstance(value, nn.Module)
        # Torch's own containers have no forward either; what they hold is a list of models, not one.
        if is_module and (has_forward(value) or type(value).__module__.startswith("torch.")):
            break
        held = value._modules if is_module else getattr(value, "__dict__", {})
        modules = {name: module for name, module in held.items() if isinstance(module, nn.Module)}
        if not modules or (is_module and len(modules) > 1):
            break
        name = max(modules, key=lambda name: sum(parameter.numel() for parameter in modules[name].parameters()))
        others += [other for other in modules if other != name]
        path, value = [*path, name], modules[name]
    if not isinstance(value, nn.Module):
        return None
    if not path:
        return HeldModel(value)
    among = f", the largest beside {', '.join(others)}" if others else ""
    said = f"the target is a {type(target).__name__}: the model in its attribute '{'.'.join(path)}' was taken{among}"
    return HeldModel(value, (said,))


def has_forward(module: nn.Module) -> bool:
    # A script module keeps its forward in torch's inner object; its class has none that can be asked for.
    is_script = isinstance(module, torch.jit.ScriptModule)
    return is_script or "forward" in vars(module) or type(module).forward is not nn.Module.forward
