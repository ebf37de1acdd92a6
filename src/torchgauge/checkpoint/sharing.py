"""Which tensors of a storage overlap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(slots=True, eq=False)
class View:
    """A tensor's elements in its storage: `offset` and `stride` in elements of `item` bytes."""

    storage: object
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    item: int

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    @property
    def extent(self) -> int:
        """Elements from the first to the last, both included."""
        if self.is_empty:
            return 0
        last = 0
        for size, step in zip(self.shape, self.stride, strict=True):
            last += (size - 1) * step
        return last + 1

    @property
    def span(self) -> tuple[int, int]:
        return self.offset * self.item, (self.offset + self.extent) * self.item


def find_owners(views: Sequence[View | None]) -> list[int | None]:
    """For each view the number of the one whose bytes it overlaps, None where it is the first to hold its own."""
    owners: list[int | None] = [None] * len(views)
    by_storage: dict[object, list[int]] = defaultdict(list)
    for number, view in enumerate(views):
        if view is not None and not view.is_empty:
            by_storage[view.storage].append(number)
    for members in by_storage.values():
        if len(members) > 1:
            _assign(views, members, owners)
    return owners


def _assign(views: Sequence[View | None], members: list[int], owners: list[int | None]) -> None:
    """The largest owns; the others follow by size, so that a part never owns its whole."""
    known = {number: view for number in members if (view := views[number]) is not None}
    if _are_apart(list(known.values())):
        return
    ordered = sorted(known, key=lambda number: (-known[number].extent * known[number].item, number))
    kept: list[int] = []
    identical: dict[tuple[object, ...], int] = {}
    for number in ordered:
        view = known[number]
        key = (view.offset, view.shape, view.stride, view.item)
        owner = identical.setdefault(key, number)
        if owner == number:
            owner = next((other for other in kept[:_COMPARED] if overlap(known[other], view)), number)
            identical[key] = owner
        if owner == number:
            kept.append(number)
        else:
            owners[number] = owner


def _are_apart(views: list[View]) -> bool:
    spans = sorted(view.span for view in views)
    return all(before[1] <= after[0] for before, after in pairwise(spans))


_COMPARED = 200  # views of one storage: beyond it, comparing each with each would take too long


def overlap(left: View, right: View) -> bool:
    if left.span[0] >= right.span[1] or right.span[0] >= left.span[1]:
        return False
    if left.item != right.item or left.stride != right.stride:
        return True
    return _boxes_meet(left, right)


def _boxes_meet(left: View, right: View) -> bool:
    """Slices of one tensor have its strides: do they have an element in common?"""
    dimensions = sorted(
        (item for item in zip(left.stride, left.shape, right.shape, strict=True) if item[0] and item[1:] != (1, 1)),
        reverse=True,
    )
    return len(dimensions) > _DIMENSIONS or _reaches(right.offset - left.offset, dimensions)


_DIMENSIONS = 8  # more than slices have in practice; the search doubles with each


def _reaches(distance: int, dimensions: list[tuple[int, int, int]]) -> bool:
    """Can the distance be made up of whole steps of which each stays in both boxes?"""
    if not dimensions:
        return distance == 0
    step, left, right = dimensions[0]
    steps = distance // step
    return any(
        -right < shift < left and _reaches(distance - shift * step, dimensions[1:]) for shift in (steps, steps + 1)
    )
