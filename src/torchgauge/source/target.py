"""TARGET -> a runnable model, stored weights, or both."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from torch import nn
from torch.jit import ScriptModule

from torchgauge.errors import UsageError
from torchgauge.facts import TargetRecord
from torchgauge.progress import Progress
from torchgauge.source.first_layer import class_names
from torchgauge.source.offline import offline
from torchgauge.source.source import OpenOptions, Source
from torchgauge.source.target_check import FORMS, is_dotted_name, python_target, unknown_target

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from torchgauge.source.building import Recipe


def resolve(
    target: str | nn.Module | ExportedProgram,
    *,
    name: str | None = None,
    code: str | nn.Module | None = None,
    allow_pickle: bool = False,
    progress: Progress | None = None,
) -> Source:
    """The model or the stored weights of a target. `name` is used in reports; by default, the target's own name.

    `code` is the model of bare weights. Nothing in a file is executed unless `allow_pickle`.
    """
    held = None if isinstance(target, str | type) or is_program(target) else find_model(target)
    is_live = held is not None or is_program(target)
    if code is not None and (is_live or not is_file(target)):
        raise UsageError("--as gives the code for a file or folder of weights, but this target is code already")
    if is_program(target):
        from torchgauge.source.exported import from_program

        return Source(from_program(target), TargetRecord(name or "ExportedProgram", "exported"))
    if held is not None:
        kind = "torchscript" if isinstance(held.model, ScriptModule) else "module"
        return Source(held.model, TargetRecord(name or class_names(held.model)[0], kind), warnings=held.warnings)
    from torchgauge.source import huggingface
    from torchgauge.source.building import find_timm, find_torchvision

    if not isinstance(target, str):
        given = f"a {type(target).__name__}"
        if isinstance(target, type):
            given = f"the class {target.__name__}; pass an instance"
        raise UsageError(f"a target is a model or a text, not {given}; the forms are: {FORMS}")
    joined = None if code is None else resolve(code)
    text = target.strip()
    options = OpenOptions(name or target.strip(), joined, allow_pickle, progress)
    registry, _, entry = text.partition(":")
    if entry and registry == "timm":
        return _from_recipe(find_timm(entry), TargetRecord(options.name, "registry", "timm"))
    if entry and registry == "torchvision":
        return _from_recipe(find_torchvision(entry), TargetRecord(options.name, "registry", "torchvision"))
    if entry and registry == "hf":
        if huggingface.config_file(entry) is not None:
            return _open_path(entry, options)
        return _from_recipe(huggingface.find(entry), TargetRecord(options.name, "registry", "transformers"))
    return _resolve_path(text, options)


def is_program(target: object) -> TypeGuard[ExportedProgram]:
    # If there is one, torch.export has been imported.
    export = sys.modules.get("torch.export")
    return export is not None and isinstance(target, export.ExportedProgram)


def is_file(target: object) -> bool:
    return isinstance(target, str) and os.path.exists(target.removeprefix("hf:"))


def _open_path(path: str, options: OpenOptions) -> Source:
    from torchgauge.source.files import open_path  # imports all file formats

    with offline(f"'{path}'"):
        return open_path(Path(path), options)


def _from_recipe(recipe: Recipe, record: TargetRecord) -> Source:
    return Source(recipe.build(), record, recipe.build_real)


def _resolve_path(text: str, options: OpenOptions) -> Source:
    from torchgauge.source import python_code

    in_file = python_target(text)
    if in_file is not None and in_file[1]:
        model = python_code.build_from_file(Path(in_file[0]), in_file[1])
        return Source(model, TargetRecord(options.name, files=in_file[:1]))
    if in_file is not None:
        attribute, model = python_code.build_only_model(Path(text))
        return Source(model, TargetRecord(f"{options.name}:{attribute}", files=(text,)))
    if os.path.exists(text):
        return _open_path(text, options)
    place, _, attribute = text.rpartition(":")
    if is_dotted_name(place) and is_dotted_name(attribute):
        return Source(python_code.build_from_module(place, attribute), TargetRecord(options.name))
    raise unknown_target(text)


_MAX_ATTRIBUTE_DEPTH = 4


@dataclass(frozen=True, slots=True)
class HeldModel:
    model: nn.Module
    warnings: tuple[str, ...] = ()


def find_model(target: object) -> HeldModel | None:
    """A callable module: `target` itself or the largest one in its attributes; None if there is none."""
    value, path, others = target, list[str](), list[str]()
    for _ in range(_MAX_ATTRIBUTE_DEPTH):
        if isinstance(value, nn.Module):
            # A script module has its forward in torch's inner object, not in its class.
            has_forward = isinstance(value, ScriptModule) or "forward" in vars(value)
            has_forward = has_forward or type(value).forward is not nn.Module.forward
            # Torch's own containers have no forward either; they are lists of models.
            if has_forward or type(value).__module__.startswith("torch."):
                break
        held = value._modules if isinstance(value, nn.Module) else getattr(value, "__dict__", {})
        modules = {name: module for name, module in held.items() if isinstance(module, nn.Module)}
        if not modules or (isinstance(value, nn.Module) and len(modules) > 1):
            break
        name = max(modules, key=lambda name: sum(parameter.numel() for parameter in modules[name].parameters()))
        others += [other for other in modules if other != name]
        path, value = [*path, name], modules[name]
    if not isinstance(value, nn.Module):
        return None
    if not path:
        return HeldModel(value)
    among = f", the largest of several (also: {', '.join(others)})" if others else ""
    warning = f"the target is a {type(target).__name__}: its attribute '{'.'.join(path)}' is analyzed{among}"
    return HeldModel(value, (warning,))
