"""The repeated blocks of a model: what its depth counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class _Branch:
    """The tensors under one path, which takes `depth` characters of their names: a list of names is all it holds, since
    a file may have hundreds of thousands."""

    names: list[str]
    depth: int

    def children(self) -> dict[str, _Branch]:
        """Without the tensors that the path holds itself."""
        found: dict[str, _Branch] = {}
        for name in self.names:
            end = name.find(".", self.depth)
            if end < 0:
                continue
            part = name[self.depth : end]
            if part not in found:
                found[part] = _Branch([], end + 1)
            found[part].names.append(name)
        return found

    def flat(self, shapes: Shapes) -> dict[str, Shape]:
        return {name[self.depth :]: shapes[name] for name in self.names}

    @property
    def layers(self) -> int:
        return len({name.rpartition(".")[0] for name in self.names})


def find_blocks(shapes: Shapes) -> list[Blocks]:
    """The topmost repetitions: the experts within a repeated layer are part of it."""
    found: list[Blocks] = []
    waiting: list[Blocks | tuple[_Branch, str]] = [(_Branch(list(shapes), 0), "")]
    while waiting:
        next_one = waiting.pop()
        if isinstance(next_one, Blocks):
            found.append(next_one)
        else:
            waiting += reversed(list(_inside(*next_one, shapes)))
    return found


def _inside(branch: _Branch, prefix: str, shapes: Shapes) -> Iterator[Blocks | tuple[_Branch, str]]:
    """The repetitions directly in a branch, and the branches below it that are none, with their prefixes."""
    children = branch.children()
    series: dict[str, list[str]] = {}
    for name in children:
        match = _NUMBERED.fullmatch(name)
        series.setdefault(match[1] if match else f"{name}.", []).append(name)
    for stem, names in series.items():
        if not stem.endswith(".") and _are_repetitions({name: children[name] for name in names}, shapes):
            yield Blocks((prefix + stem).rstrip("."), len(names), children[names[-1]].flat(shapes))
        else:
            yield from ((children[name], f"{prefix}{name}.") for name in names)


def _are_repetitions(members: dict[str, _Branch], shapes: Shapes) -> bool:
    if any(member.layers < 2 for member in members.values()):
        return False
    if len(members) == 1:
        # A single block: only a plain index says that it is one of a list, and only size that it is a block.
        return "0" in members and members["0"].layers >= 4
    from statistics import median

    return median(_likenesses([*members.values()], shapes)) >= _ALIKE


def _likenesses(members: list[_Branch], shapes: Shapes) -> Iterator[float]:
    """How much each block is like the next or the next but one: blocks of two kinds may alternate."""
    near = [member.flat(shapes) for member in members[:2]]
    for later in (*members[2:], None):
        near += [later.flat(shapes)] if later is not None else []
        left, *rights = near
        yield max(_likeness(left, right) for right in rights)
        near = rights


def _likeness(left: dict[str, Shape], right: dict[str, Shape]) -> float:
    names = left.keys() | right.keys()
    # The first block of a stage takes another width than the rest, but all end with the same.
    if len(left.keys() & right.keys()) >= _SAME_NAMES * len(names) and _last(left) == _last(right):
        return 1.0
    return sum(right.get(name) == shape for name, shape in left.items()) / len(names)


def _last(tensors: dict[str, Shape]) -> tuple[str, Shape] | None:
    return next(((name, shape) for name, shape in reversed(tensors.items()) if shape), None)
