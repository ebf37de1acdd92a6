"""Tensors at the same place of repeated blocks: `layers.0.fc.weight` and `layers.1.fc.weight` are siblings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

_NUMBERED = re.compile(r"(.*?)(\d+)")
_EXPERTS = re.compile(r"experts?", re.IGNORECASE)


class Place(NamedTuple):
    """A name with a star for each index, and the indices."""

    pattern: str
    indices: tuple[int, ...]


def place_of(name: str) -> Place:
    """A number that stands alone is an index, and so is one at the end of a block's name (`denselayer3.conv.weight`).

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


def layer_of(name: str) -> tuple[int, ...]:
    """The indices that tell layers apart: those of the experts within a layer are left out, where it has others."""
    place = place_of(name)
    return tuple(place.indices[number] for number, _ in _layer_stars(place.pattern))


class Stem(NamedTuple):
    """Where blocks repeat: `layers.*` or `layer*.*`, and how many indices that takes."""

    path: str
    depth: int


def stem_of(pattern: str, names: Iterable[str]) -> Stem:
    """Up to the last index that varies within a block above: `layers.*.downsample.0` has but one that tells layers."""
    layers = sorted({layer_of(name) for name in names})
    stars = _layer_stars(pattern)
    depth = 1
    for upper, lower in pairwise(layers):
        first = next(position for position, pair in enumerate(zip(upper, lower, strict=True)) if pair[0] != pair[1])
        depth = max(depth, first + 1)
    parts = pattern.split(".")
    return Stem(".".join(parts[: stars[depth - 1][1] + 1]), depth)


def _layer_stars(pattern: str) -> list[tuple[int, int]]:
    """Which indices are those of layers, and in which part of the pattern each is."""
    parts = pattern.split(".")
    stars = list(enumerate(position for position, part in enumerate(parts) if part.endswith("*")))
    layers = [star for star in stars if not _is_expert(parts, star[1])]
    return layers or stars


def _is_expert(parts: list[str], position: int) -> bool:
    return position > 0 and parts[position] == "*" and _EXPERTS.fullmatch(parts[position - 1]) is not None


def by_pattern(names: Iterable[str]) -> dict[str, list[str]]:
    """Names with an index, by their pattern, in the order given."""
    groups: dict[str, list[str]] = {}
    for name in names:
        place = place_of(name)
        if place.indices:
            groups.setdefault(place.pattern, []).append(name)
    return groups
