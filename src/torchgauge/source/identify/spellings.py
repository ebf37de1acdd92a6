"""The names of a transformers model's tensors: in memory, and in the files that transformers writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import nn

from torchgauge.source.identify.fingerprint import hash_text
from torchgauge.source.state_names import Shape, is_optional

_MODULUS = 1 << 48  # enough to distinguish some thousand sets of names
_MOST_EXPERTS = 4096
INDEX = re.compile(r"(?:^|(?<=\.))\d+(?=\.|$)")
# Spellings of old files that transformers still reads.
_RENAMED = (
    (re.compile(r"LayerNorm\.gamma$"), "LayerNorm.weight"),
    (re.compile(r"LayerNorm\.beta$"), "LayerNorm.bias"),
    (re.compile(r"\.weight_g$"), ".parametrizations.weight.original0"),
    (re.compile(r"\.weight_v$"), ".parametrizations.weight.original1"),
)


def modern(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    renamed = {}
    for name, shape in shapes.items():
        for pattern, replacement in _RENAMED:
            name = pattern.sub(replacement, name)
        renamed[name] = shape
    return renamed


def pattern_sum(names: Iterable[str]) -> int:
    """A number for the names of a state dict, whatever the number of its layers."""
    return sum(map(hash_text, patterns_of(names))) % _MODULUS


def patterns_of(names: Iterable[str]) -> set[str]:
    return {pattern_of(name) for name in names if not is_optional(name)}


def pattern_of(name: str) -> str:
    return INDEX.sub("#", name)


@dataclass(frozen=True, slots=True)
class Spelling:
    """`twins` are the other names of tied tensors: one of them in a file is enough."""

    shapes: dict[str, Shape]
    twins: Mapping[str, frozenset[str]]


def spellings(model: nn.Module) -> list[Spelling]:
    """As files have it and, where that differs, as the model has it: fused experts are stored one by one, and tables
    that can be computed are not stored."""
    # Unchanged: tied tensors are recognised by identity.
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}
    unsaved = re.compile("|".join(getattr(model, "_keys_to_ignore_on_save", None) or ("^$",)))
    stored = _as_stored(model, state)
    saved = {name: value for name, value in stored.items() if not unsaved.search(name)}
    distinct: list[Spelling] = []
    for tensors in (saved, stored, state):
        names: dict[int, list[str]] = {}
        for name, value in tensors.items():
            names.setdefault(id(value), []).append(name)
        groups = [frozenset(group) for group in names.values() if len(group) > 1]
        twins = {name: group - {name} for group in groups for name in group}
        spelling = Spelling({name: tuple(value.shape) for name, value in tensors.items()}, twins)
        distinct += [spelling] if all(spelling.shapes != other.shapes for other in distinct) else []
    return distinct


def tied_names(model: nn.Module, names: Iterable[str]) -> frozenset[str]:
    """The names that files leave out where the config ties them, as another tensor stands for them."""
    keys = {key for part in model.modules() for key in (getattr(part, "_tied_weights_keys", None) or ())}
    tied = re.compile("|".join(keys) or "^$")
    return frozenset(name for name in names if tied.search(name))


def _as_stored(model: nn.Module, state: dict[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    try:
        loading = import_module("transformers.core_model_loading")
    except ModuleNotFoundError:  # before version 5 files and models had the same names
        return state
    if any("experts" in name and value.dim() == 3 and value.shape[0] > _MOST_EXPERTS for name, value in state.items()):
        return state  # a file may claim any size: these would become tensors one by one
    # Conversions are someone else's code, given sizes that may not go together.
    try:
        with torch.no_grad():
            reverted: Mapping[str, torch.Tensor] = loading.revert_weight_conversion(model, state)
    except Exception:
        return state
    return reverted
