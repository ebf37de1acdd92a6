"""TARGET -> a runnable model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from torchgauge.errors import TargetError, UsageError
from torchgauge.records import TargetRecord
from torchgauge.source import huggingface, python_code, timm_models, torchvision_models
from torchgauge.source.building import Recipe

_FORMS = (
    "path/to/file.py:Name, package.module:Name (a class, a function that builds the model, or the model), "
    "timm:NAME, torchvision:NAME, hf:FOLDER_OR_CLASS"
)


@dataclass(frozen=True, slots=True)
class Source:
    """A model and where it came from.

    A registry model may have its parameters on the meta device; `build_real` then builds it once more with real
    ones. None where the parameters are what the user's own code made.
    """

    model: nn.Module
    record: TargetRecord
    build_real: Callable[[], nn.Module] | None = None


def resolve(target: str | nn.Module, *, name: str | None = None) -> Source:
    """The model that `target` names; `name` is what reports call it, else the target's own name."""
    if isinstance(target, nn.Module):
        return Source(target, TargetRecord(name or type(target).__name__))
    if not isinstance(target, str):
        raise UsageError(f"a target is a model or a text, not {_describe(target)}; the forms are: {_FORMS}")
    return _resolve_text(target.strip(), name)


def _describe(value: object) -> str:
    return f"the class {value.__name__}; pass an instance" if isinstance(value, type) else f"a {type(value).__name__}"


def _resolve_text(text: str, name: str | None) -> Source:
    registry, _, entry = text.partition(":")
    if entry and registry == "timm":
        return _from_recipe(timm_models.find(entry), TargetRecord(name or text, "registry", "timm"))
    if entry and registry == "torchvision":
        return _from_recipe(torchvision_models.find(entry), TargetRecord(name or text, "registry", "torchvision"))
    if entry and registry == "hf":
        return _from_huggingface(entry, name or text)
    return _resolve_path(text, name or text)


def _from_recipe(recipe: Recipe, record: TargetRecord) -> Source:
    return Source(recipe.build(), record, recipe.build_real)


def _from_huggingface(entry: str, name: str) -> Source:
    config_file = huggingface.config_file(entry)
    if config_file is None:
        return _from_recipe(huggingface.find(entry), TargetRecord(name, "registry", "transformers"))
    record = TargetRecord(name, "folder", "transformers", (str(config_file),))
    return _from_recipe(huggingface.read(config_file), record)


def _resolve_path(text: str, name: str) -> Source:
    place, _, attribute = text.rpartition(":")
    if python_code.is_file(place) and python_code.is_dotted_name(attribute):
        return Source(python_code.build_from_file(Path(place), attribute), TargetRecord(name, files=(place,)))
    if huggingface.is_config(Path(text)):
        return _from_huggingface(text, name)
    if text and Path(text).exists():
        raise _not_code(text)
    if python_code.is_dotted_name(place) and python_code.is_dotted_name(attribute):
        return Source(python_code.build_from_module(place, attribute), TargetRecord(name))
    raise UsageError(f"'{text}' is not a target; the forms are: {_FORMS}")


def _not_code(text: str) -> Exception:
    if text.endswith(".py"):
        return UsageError(f"'{text}' may hold several models: say which, as {text}:Name")
    return TargetError(
        f"'{text}' is no Python file: model files are not read by this version yet. "
        f"Give the code that builds the model: {_FORMS}"
    )
