from __future__ import annotations

import numpy as np

from torchgauge.checkpoint import View, find_owners, overlap


def view(offset: int, shape: tuple[int, ...], stride: tuple[int, ...], item: int = 4) -> View:
    return View("storage", offset, shape, stride, item)


def test_slices_of_one_matrix_overlap_as_their_elements_do() -> None:
    """Every pair of boxes in a small matrix, against the sets of their elements."""
    rows, columns = 4, 5
    cells = np.arange(rows * columns).reshape(rows, columns)
    boxes = [(r, c, h, w) for r in range(3) for c in range(4) for h in (1, 2) for w in (1, 2)]
    boxes = [box for box in boxes if box[0] + box[2] <= rows and box[1] + box[3] <= columns]
    held = {(r, c, h, w): set(cells[r : r + h, c : c + w].ravel().tolist()) for r, c, h, w in boxes}
    for left in boxes:
        for right in boxes:
            views = [view(r * columns + c, (h, w), (columns, 1)) for r, c, h, w in (left, right)]
            assert overlap(*views) == bool(held[left] & held[right]), (left, right)


def test_the_largest_owns_whatever_its_place() -> None:
    part, whole, twin = view(2, (3,), (1,)), view(0, (10,), (1,)), view(0, (10,), (1,))
    assert find_owners([part, whole, twin]) == {0: 1, 2: 1}


def test_other_storages_empty_views_and_missing_ones_own_themselves() -> None:
    other = View("other", 0, (10,), (1,), 4)
    assert find_owners([view(0, (10,), (1,)), other, view(0, (0,), (1,)), None]) == {}


def test_views_of_another_width_are_compared_by_bytes() -> None:
    floats = view(0, (8,), (1,), 4)
    within, behind = view(31, (1,), (1,), 1), view(16, (4,), (1,), 2)
    assert find_owners([floats, within, behind]) == {1: 0}
