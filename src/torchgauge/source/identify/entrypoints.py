"""The functions of timm and torchvision that build models, with the text of their definitions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import nn

from torchgauge.errors import MissingDependencyError, TargetError
from torchgauge.source import timm_models, torchvision_models
from torchgauge.source.building import Recipe
from torchgauge.source.identify.features import vocabulary
from torchgauge.source.packages import import_optional

_DEFINITION = re.compile(r"^def (\w+)\(", re.MULTILINE)
_NEIGHBOUR = re.compile(r"^from (?:timm\.models)?\.(\w+) import", re.MULTILINE)
# Where layers live that any architecture of the registry may use, from the folder of the architectures.
_SHARED = ("../layers", "../ops")
_CALL = re.compile(r"\breturn (\w+)\(|= (_\w+)\(")


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """`target` is how a user names the model; entry points of one `group` share a file and the helper they call."""

    target: str
    file: str
    group: str
    text: str

    def recipe(self, classes: int | None = None) -> Recipe:
        """How to build it, with another number of classes where one is given."""
        registry, _, name = self.target.partition(":")
        recipe = (timm_models if registry == "timm" else torchvision_models).find(name)
        if classes is None:
            return recipe
        return Recipe(recipe.name, partial(_with_classes, recipe.factory, classes))


def _with_classes(factory: Any, classes: int) -> nn.Module:
    return factory(num_classes=classes)


@cache
def timm_entrypoints() -> tuple[Entrypoint, ...]:
    """Empty where timm is not installed or does not import."""
    timm = _import("timm")
    if timm is None:
        return ()
    functions = {name: timm.models.model_entrypoint(name) for name in timm.list_models()}
    return tuple(_entrypoints("timm", functions))


@cache
def torchvision_entrypoints() -> tuple[Entrypoint, ...]:
    """Empty where torchvision is not installed or does not import."""
    models = _import("torchvision.models")
    if models is None:
        return ()
    functions = {name: models.get_model_builder(name) for name in models.list_models()}
    # Quantized twins have names and shapes of their own; detection models are built for real, which costs seconds.
    skipped = ("quantization", "detection")
    return tuple(_entrypoints("torchvision", {n: f for n, f in functions.items() if not _is_in(f, skipped)}))


def _import(package: str) -> Any:
    try:
        return import_optional(package, "identifying a checkpoint")
    except (MissingDependencyError, TargetError):
        return None


def _is_in(function: Any, areas: tuple[str, ...]) -> bool:
    return any(area in function.__module__.split(".") for area in areas)


def _entrypoints(registry: str, functions: Mapping[str, Any]) -> Iterator[Entrypoint]:
    for name, function in functions.items():
        file = inspect.unwrap(function).__code__.co_filename
        text = _definitions(file).get(function.__name__, "")
        call = _CALL.search(text)
        yield Entrypoint(f"{registry}:{name}", file, f"{file}:{(call[1] or call[2]) if call else ''}", text)


@cache
def _definitions(file: str) -> Mapping[str, str]:
    """The text of each function at the top level of a file."""
    text = read_text(file)
    starts = [(match.start(), match[1]) for match in _DEFINITION.finditer(text)]
    ends = [start for start, _ in starts[1:]] + [len(text)]
    return MappingProxyType({name: text[start:end] for (start, name), end in zip(starts, ends, strict=True)})


def read_text(file: str) -> str:
    return Path(file).read_text(encoding="utf-8", errors="replace")


@cache
def file_vocabulary(file: str) -> frozenset[str]:
    """The names that a file and those beside it that it imports give to parts of a model."""
    text = read_text(file)
    beside = [Path(file).with_name(f"{name}.py") for name in _NEIGHBOUR.findall(text)]
    names = [vocabulary(read_text(str(path))) for path in beside if path.is_file()]
    return vocabulary(text).union(*names)


@cache
def shared_vocabulary(file: str) -> frozenset[str]:
    """The names in the layers that the registry of a file shares: they tell nothing about an architecture."""
    files = [path for folder in _SHARED for path in (Path(file).parent / folder).glob("*.py")]
    return frozenset().union(*(vocabulary(read_text(str(path))) for path in files))
