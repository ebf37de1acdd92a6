"""What a solver looks at of a state dict: each kind of tensor once, and how many there are of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torchgauge.source.identify.spellings import INDEX, pattern_of
from torchgauge.source.state_names import Shape, is_optional

# A dimension of a tensor, the members of a list of modules, or the tensors named by one pattern.
Key = tuple[str, int]
# A tensor of a layer: its name there and its shape.
Member = tuple[str, Shape]
MEMBERS, NAMED = -1, -2
_PLACE = re.compile(r"(?:(.+?)\.)?([0-9]{1,5})\.(.+)")
_MOST_STAGES = 6
_WORTH_IT = 0.6


@dataclass(frozen=True)
class Outline:
    """`is_whole`: each tensor counts, not only the first of its kind."""

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
        """The sizes of the first tensor of each pattern and shape, apart for the first layers as those may be stages,
        and all lists and patterns: the other tensors say the same."""
        tensors = {(pattern_of(name), _stage(name), shape): name for name, shape in reversed(list(self.shapes.items()))}
        names = self.shapes if self.is_whole else tensors.values()
        return (*((name, dim) for name in names for dim in range(len(self.shapes[name]))), *self.counts)

    @cached_property
    def patterns(self) -> frozenset[str]:
        return frozenset(name for name, kind in self.counts if kind == NAMED)

    @cached_property
    def first_layers(self) -> Outline:
        """As many as it takes to see every kind of layer: what is built of them is built quickly."""
        depth = max((_until_all_kinds(members) for members in layers_of(self.shapes).values()), default=0) + 1
        kept = {name: shape for name, shape in self.shapes.items() if (at := _layer(name)) is None or at[1] < depth}
        return Outline.of(kept) if len(kept) < _WORTH_IT * len(self.shapes) else self

    def size(self, key: Key) -> int | None:
        """None where there is no such tensor; of a list or pattern that is not there, there is none."""
        name, dim = key
        if dim < 0:
            return self.counts.get(key, 0)
        shape = self.shapes.get(name, ())
        return shape[dim] if dim < len(shape) else None

    def wrong(self, other: Outline) -> dict[Key, tuple[int | None, int]]:
        """What another state dict has, and what this one, where they differ."""
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


def _stage(name: str) -> int:
    place = _layer(name)
    return min(place[1], _MOST_STAGES) if place is not None else 0


def _until_all_kinds(members: Mapping[int, frozenset[Member]]) -> int:
    """How many of a list one must see to have seen each kind."""
    firsts = {members[index]: index for index in sorted(members, reverse=True)}
    return max(firsts.values(), default=0) + 1
