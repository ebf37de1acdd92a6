"""Tensors at the same place of repeated blocks (siblings), such as `layers.0.fc.weight` and `layers.1.fc.weight`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

_NUMBERED = re.compile(r"(.*?)(\d+)")
_EXPERTS = re.compile(r"experts?", re.IGNORECASE)


class Place(NamedTuple):
    """A name with a star for each index, and the indices."""

    pattern: str
    indices: tuple[int, ...]


def place_of(name: str) -> Place:
    """A bare number is an index, and so is one at the end of a block's name (`denselayer3.conv.weight`).

    The module that holds the tensor keeps its number: `conv1` and `conv2` of a block are different layers.
    """
    parts = name.split(".")
    blocks = len(parts) - 2
    starred: list[str] = []
    indices: list[int] = []
    for position, part in enumerate(parts):
        match = _NUMBERED.fullmatch(part)
        if match and (not match[1] or position < blocks):
            starred.append(f"{match[1]}*")
            indices.append(int(match[2]))
        else:
            starred.append(part)
    return Place(".".join(starred), tuple(indices))


def by_pattern(names: Iterable[str]) -> dict[str, list[str]]:
    """Names that contain an index, by pattern, in the order given."""
    groups: dict[str, list[str]] = {}
    for name in names:
        place = place_of(name)
        if place.indices:
            groups.setdefault(place.pattern, []).append(name)
    return groups


def layer_of(name: str) -> tuple[int, ...]:
    """The indices of the layer; those of experts within a layer are ignored, unless there are no others."""
    place = place_of(name)
    return tuple(place.indices[number] for number, _ in _layer_stars(place.pattern))


class Stem(NamedTuple):
    """Where blocks repeat (`layers.*` or `layer*.*`), and its number of indices."""

    path: str
    depth: int


def stem_of(pattern: str, names: Iterable[str]) -> Stem:
    """Up to the last index that varies within a block: in `layers.*.downsample.0` only the first one does."""
    layers = sorted({layer_of(name) for name in names})
    stars = _layer_stars(pattern)
    depth = 1
    for upper, lower in pairwise(layers):
        first = next(position for position, pair in enumerate(zip(upper, lower, strict=True)) if pair[0] != pair[1])
        depth = max(depth, first + 1)
    parts = pattern.split(".")
    return Stem(".".join(parts[: stars[depth - 1][1] + 1]), depth)


def by_stem(sizes: Mapping[str, int]) -> dict[Stem, dict[str, list[str]]]:
    """Names by pattern, each pattern with the largest stem that it begins with, by bytes: what a few layers have goes
    with what all have. The largest stem first; `sizes` are the bytes by name."""
    patterns = by_pattern(sizes)
    weight: Counter[Stem] = Counter()
    for pattern, names in patterns.items():
        weight[stem_of(pattern, names)] += sum(sizes[name] for name in names)
    groups: dict[Stem, dict[str, list[str]]] = {stem: {} for stem, _ in weight.most_common()}
    for pattern, names in patterns.items():
        fitting = next(stem for stem in groups if f"{pattern}.".startswith(f"{stem.path}."))
        groups[fitting][pattern] = names
    return {stem: found for stem, found in groups.items() if found}


def _layer_stars(pattern: str) -> list[tuple[int, int]]:
    """The numbers of the indices that count layers, and the position of each in the pattern."""
    parts = pattern.split(".")
    stars = list(enumerate(position for position, part in enumerate(parts) if part.endswith("*")))

    def counts_experts(position: int) -> bool:
        return position > 0 and parts[position] == "*" and _EXPERTS.fullmatch(parts[position - 1]) is not None

    return [star for star in stars if not counts_experts(star[1])] or stars
