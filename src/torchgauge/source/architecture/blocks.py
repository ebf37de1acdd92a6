"""The repeated blocks of a model: what its depth counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from torchgauge.source.architecture.layers import Shape, Shapes

_NUMBERED = re.compile(r"(.*?)(\d+)")
# Below this share of equal tensors two neighbours are stages of different width, not repetitions of one block.
_ALIKE = 0.5
_SAME_NAMES = 0.8


@dataclass(frozen=True, slots=True)
class Blocks:
    """Neighbours with numbers for names that hold mostly the same tensors; `tensors` are those of the last one, because
    the first often has more (a projection, a shared table)."""

    path: str
    count: int
    tensors: Shapes


@dataclass(slots=True)
class _Branch:
    own: dict[str, Shape]
    children: dict[str, _Branch]

    def flat(self, prefix: str = "") -> dict[str, Shape]:
        found = {prefix + name: shape for name, shape in self.own.items()}
        for name, child in self.children.items():
            found |= child.flat(f"{prefix}{name}.")
        return found

    @property
    def layers(self) -> int:
        return bool(self.own) + sum(child.layers for child in self.children.values())


def find_blocks(shapes: Shapes) -> list[Blocks]:
    """The topmost repetitions: the experts within a repeated layer are part of it."""
    root = _Branch({}, {})
    for name, shape in shapes.items():
        branch = root
        *path, own = name.split(".")
        for part in path:
            below = branch.children.get(part)
            if below is None:
                below = branch.children[part] = _Branch({}, {})
            branch = below
        branch.own[own] = shape
    return list(_blocks(root, ""))


def _blocks(branch: _Branch, prefix: str) -> Iterator[Blocks]:
    series: dict[str, list[str]] = {}
    for name in branch.children:
        match = _NUMBERED.fullmatch(name)
        series.setdefault(match[1] if match else f"{name}.", []).append(name)
    for stem, names in series.items():
        members = [branch.children[name].flat() for name in names]
        if _is_numbered(stem) and _are_repetitions(branch, names, members):
            yield Blocks((prefix + stem).rstrip("."), len(names), members[-1])
            continue
        for name in names:
            yield from _blocks(branch.children[name], f"{prefix}{name}.")


def _is_numbered(stem: str) -> bool:
    return not stem.endswith(".")


def _are_repetitions(branch: _Branch, names: list[str], members: list[dict[str, Shape]]) -> bool:
    if any(branch.children[name].layers < 2 for name in names):
        return False
    if len(names) == 1:
        # A single block: only a plain index says that it is one of a list, and only size that it is a block.
        return names[0] == "0" and branch.children["0"].layers >= 4
    # The next but one too: blocks of two kinds may alternate.
    following = [(left, members[index + 1 : index + 3]) for index, left in enumerate(members[:-1])]
    return median(max(_likeness(left, right) for right in rights) for left, rights in following) >= _ALIKE


def _likeness(left: dict[str, Shape], right: dict[str, Shape]) -> float:
    names = left.keys() | right.keys()
    # The first block of a stage takes another width than the rest, but all end with the same.
    if len(left.keys() & right.keys()) >= _SAME_NAMES * len(names) and _last(left) == _last(right):
        return 1.0
    return sum(right.get(name) == shape for name, shape in left.items()) / len(names)


def _last(tensors: dict[str, Shape]) -> tuple[str, Shape] | None:
    return next(((name, shape) for name, shape in reversed(tensors.items()) if shape), None)
