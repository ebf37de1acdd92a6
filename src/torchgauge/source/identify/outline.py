"""The outline of a state dict for the solver: each kind of tensor once, with its count."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from torchgauge.checkpoint.tensor_names import is_optional
from torchgauge.source.identify.fingerprint import hash_text
from torchgauge.source.state_names import Shape, tied_twins

if TYPE_CHECKING:
    import torch
    from torch import nn

# A dimension of a tensor, the members of a list of modules, or the tensors named by one pattern.
Key = tuple[str, int]
# A tensor of a layer: its name there and its shape.
Member = tuple[str, Shape]
MEMBERS, NAMED = -1, -2
_PLACE = re.compile(r"(?:(.+?)\.)?([0-9]{1,5})\.(.+)")
_MAX_STAGES = 6
_MAX_KEPT_SHARE = 0.6


@dataclass(frozen=True)
class Outline:
    """`is_whole`: all tensors are compared, not only the first of each kind."""

    shapes: Mapping[str, Shape]
    counts: Mapping[Key, int]
    is_whole: bool = False

    @classmethod
    def of(cls, shapes: Mapping[str, Shape]) -> Outline:
        names = {name: shape for name, shape in shapes.items() if not is_optional(name)}
        patterns = Counter(map(pattern_of, names))
        members: dict[str, set[str]] = {}
        for name in names:
            for index in INDEX.finditer(name):
                members.setdefault(name[: index.start()], set()).add(index[0])
        counts = {(path.rstrip("."), MEMBERS): len(indices) for path, indices in members.items()}
        return cls(names, counts | {(pattern, NAMED): count for pattern, count in patterns.items()})

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """The sizes of the first tensor of each pattern and shape (the first layers separately, because they may be
        stages), and all lists and patterns. The other tensors add no information."""
        tensors = {}
        for name, shape in reversed(list(self.shapes.items())):
            place = _layer(name)
            stage = min(place[1], _MAX_STAGES) if place is not None else 0
            tensors[pattern_of(name), stage, shape] = name
        names = self.shapes if self.is_whole else tensors.values()
        return (*((name, dim) for name in names for dim in range(len(self.shapes[name]))), *self.counts)

    @cached_property
    def patterns(self) -> frozenset[str]:
        return frozenset(name for name, kind in self.counts if kind == NAMED)

    @cached_property
    def first_layers(self) -> Outline:
        """The outline of as many layers as contain every kind of layer, which is quick to build."""
        depth = 1
        for members in layers_of(self.shapes).values():
            # The index of the first layer of each kind.
            firsts = {members[index]: index for index in sorted(members, reverse=True)}
            depth = max(depth, max(firsts.values(), default=0) + 2)
        kept = {name: shape for name, shape in self.shapes.items() if (at := _layer(name)) is None or at[1] < depth}
        return Outline.of(kept) if len(kept) < _MAX_KEPT_SHARE * len(self.shapes) else self

    def size(self, key: Key) -> int | None:
        """None if there is no such tensor, 0 if there is no such list or pattern."""
        name, dim = key
        if dim < 0:
            return self.counts.get(key, 0)
        shape = self.shapes.get(name, ())
        return shape[dim] if dim < len(shape) else None

    def wrong(self, other: Outline) -> dict[Key, tuple[int | None, int]]:
        """The sizes that differ: of another state dict, and of this one."""
        unknown = (key for key in other.counts if key[1] == NAMED and key not in self.counts)
        both = ((key, other.size(key), self.size(key) or 0) for key in (*self.keys, *unknown))
        return {key: (has, wants) for key, has, wants in both if has != wants}


def layers_of(shapes: Mapping[str, Shape]) -> dict[str, dict[int, frozenset[Member]]]:
    """The outermost lists of modules by their paths: the tensors of each member by its place."""
    found: dict[str, dict[int, list[Member]]] = {}
    for name, shape in shapes.items():
        place = _layer(name)
        if place is not None:
            path, index, rest = place
            found.setdefault(path, {}).setdefault(index, []).append((rest, shape))
    return {path: {index: frozenset(own) for index, own in members.items()} for path, members in found.items()}


def _layer(name: str) -> tuple[str, int, str] | None:
    found = _PLACE.fullmatch(name)
    return (found[1] or "", int(found[2]), found[3]) if found else None


_MODULUS = 1 << 48  # enough to distinguish several thousand sets of names
_MAX_EXPERTS = 4096
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
    """A hash of the names of a state dict that does not depend on the number of layers."""
    return sum(map(hash_text, patterns_of(names))) % _MODULUS


def patterns_of(names: Iterable[str]) -> set[str]:
    return {pattern_of(name) for name in names if not is_optional(name)}


def pattern_of(name: str) -> str:
    return INDEX.sub("#", name)


@dataclass(frozen=True, slots=True)
class Spelling:
    """`twins` are the other names of tied tensors, of which a file needs only one."""

    shapes: dict[str, Shape]
    twins: Mapping[str, frozenset[str]]


def spellings(model: nn.Module) -> list[Spelling]:
    """The names in files and, if different, in memory: fused experts are stored one by one, and tables that can be
    computed are not stored."""
    import torch

    # With `keep_vars`, because tied tensors are recognised by identity.
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}
    unsaved = re.compile("|".join(getattr(model, "_keys_to_ignore_on_save", None) or ("^$",)))
    stored: Mapping[str, torch.Tensor] = state
    # A file may claim any size, and each expert would become a tensor.
    experts = (value.shape[0] for name, value in state.items() if "experts" in name and value.dim() == 3)
    if max(experts, default=0) <= _MAX_EXPERTS:
        # Before version 5 files and models had the same names, and there is no such module. Conversions are
        # third-party code, called with sizes that may be inconsistent: they may raise anything.
        with suppress(Exception), torch.no_grad():
            stored = import_module("transformers.core_model_loading").revert_weight_conversion(model, state)
    saved = {name: value for name, value in stored.items() if not unsaved.search(name)}
    distinct: list[Spelling] = []
    for tensors in (saved, stored, state):
        shapes = {name: tuple(value.shape) for name, value in tensors.items()}
        spelling = Spelling(shapes, tied_twins(tensors.items()))
        distinct += [spelling] if all(spelling.shapes != other.shapes for other in distinct) else []
    return distinct
