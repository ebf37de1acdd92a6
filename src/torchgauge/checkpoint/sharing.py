"""Find tensors of a storage that overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchgauge.registry import grouped


@dataclass(slots=True, eq=False)
class View:
    """The elements of a tensor in its storage; `offset` and `stride` in elements of `item` bytes."""

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
        """The number of elements from the first to the last."""
        if self.is_empty:
            return 0
        last = 0
        for size, step in zip(self.shape, self.stride, strict=True):
            last += (size - 1) * step
        return last + 1

    @property
    def span(self) -> tuple[int, int]:
        return self.offset * self.item, (self.offset + self.extent) * self.item


def find_owners(views: Sequence[View | None]) -> dict[int, int]:
    """For each view that overlaps a larger one, or an earlier one of equal size: the index of that view."""
    by_storage = grouped((view.storage, number) for number, view in enumerate(views) if view is not None)
    owners: dict[int, int] = {}
    for members in by_storage.values():
        if len(members) > 1:
            known = {number: view for number in members if (view := views[number]) is not None and not view.is_empty}
            # Views whose byte ranges overlap form a group; owners are determined within it.
            groups: list[dict[int, View]] = []
            end = 0
            for (first, last), number in sorted((view.span, number) for number, view in known.items()):
                if first >= end or not groups:
                    groups.append({})
                groups[-1][number] = known[number]
                end = max(end, last)
            for group in groups:
                owners |= _owners(group)
    return owners


def _owners(views: Mapping[int, View]) -> dict[int, int]:
    """The largest view owns; the others follow by size, so that a part never owns the whole."""
    owners: dict[int, int] = {}
    identical: dict[tuple[object, ...], int] = {}
    kept: list[int] = []
    comparisons = _MAX_COMPARISONS
    for number in sorted(views, key=lambda number: (-views[number].extent * views[number].item, number)):
        view = views[number]
        key = (view.offset, view.shape, view.stride, view.item)
        owner = identical.setdefault(key, number)
        if owner == number:
            # If there are too many for pairwise comparison, the rest belongs to the largest of the group.
            known = kept if len(kept) <= comparisons else kept[:1]
            comparisons -= len(known)
            is_sure = known is kept
            owner = next((other for other in known if not is_sure or overlap(views[other], view)), number)
            identical[key] = owner
        if owner == number:
            kept.append(number)
        else:
            owners[number] = owner
    return owners


_MAX_COMPARISONS = 200_000  # in one group; each takes a few microseconds


def overlap(left: View, right: View) -> bool:
    if left.span[0] >= right.span[1] or right.span[0] >= left.span[1]:
        return False
    if left.item != right.item or left.stride != right.stride:
        return True
    # Whether slices of one tensor, which have its strides, share an element.
    dimensions = sorted(
        (item for item in zip(left.stride, left.shape, right.shape, strict=True) if item[0] and item[1:] != (1, 1)),
        reverse=True,
    )
    return len(dimensions) > _DIMENSIONS or _reaches(right.offset - left.offset, dimensions)


_DIMENSIONS = 5  # more than slices have in practice; the search doubles with each


def _reaches(distance: int, dimensions: list[tuple[int, int, int]]) -> bool:
    """Whether the distance is a sum of whole strides that stay within both boxes."""
    if not dimensions:
        return distance == 0
    step, left, right = dimensions[0]
    steps = distance // step
    return any(
        -right < shift < left and _reaches(distance - shift * step, dimensions[1:]) for shift in (steps, steps + 1)
    )
