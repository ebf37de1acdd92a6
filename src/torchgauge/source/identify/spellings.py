"""The names of a transformers model's tensors: in memory, and in the files that transformers writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import import_module

import torch
from torch import nn

from torchgauge.source.identify.fingerprint import hash_text
from torchgauge.source.matching import is_optional
from torchgauge.source.state_names import Shape

_MODULUS = 1 << 64
# Spellings of old files that transformers still reads.
_RENAMED = (
    (re.compile(r"LayerNorm\.gamma$"), "LayerNorm.weight"),
    (re.compile(r"LayerNorm\.beta$"), "LayerNorm.bias"),
    (re.compile(r"\.weight_g$"), ".parametrizations.weight.original0"),
    (re.compile(r"\.weight_v$"), ".parametrizations.weight.original1"),
)


def modern(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    return {_renamed(name): shape for name, shape in shapes.items()}


def _renamed(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name = pattern.sub(replacement, name)
    return name


def pattern_sum(names: Iterable[str]) -> int:
    """A number for the names of a state dict, whatever the number of its layers."""
    return sum(map(hash_text, patterns_of(names))) % _MODULUS


def patterns_of(names: Iterable[str]) -> set[str]:
    parts = (name.split(".") for name in names if not is_optional(name))
    return {".".join("#" if part.isdigit() else part for part in path) for path in parts}


def spellings(model: nn.Module) -> list[dict[str, Shape]]:
    """As files have it and, where that differs, as the model has it: fused experts are stored one by one, and tables
    that can be computed are not stored."""
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    unsaved = re.compile("|".join(getattr(model, "_keys_to_ignore_on_save", None) or ("^$",)))
    stored, own = _shapes(_as_stored(model, state)), _shapes(state)
    saved = {name: shape for name, shape in stored.items() if not unsaved.search(name)}
    distinct = [saved]
    return distinct + [names for names in (stored, own) if names not in distinct]


def tied_names(model: nn.Module, names: Iterable[str]) -> frozenset[str]:
    """The names that files leave out where the config ties them, as another tensor stands for them."""
    keys = {key for part in model.modules() for key in (getattr(part, "_tied_weights_keys", None) or ())}
    tied = re.compile("|".join(keys) or "^$")
    return frozenset(name for name in names if tied.search(name))


def _shapes(state: Mapping[str, torch.Tensor]) -> dict[str, Shape]:
    return {name: tuple(value.shape) for name, value in state.items()}


def _as_stored(model: nn.Module, state: dict[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    try:
        loading = import_module("transformers.core_model_loading")
    except ModuleNotFoundError:  # before version 5 files and models had the same names
        return state
    # Conversions are someone else's code, given sizes that may not go together.
    try:
        reverted: Mapping[str, torch.Tensor] = loading.revert_weight_conversion(model, state)
    except Exception:
        return state
    return reverted
