"""The longest common subsequence of two sequences, by bits: as many rows at once as an integer has bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Rows that are kept for the way back, of as many bits each: 50 MB. Only very long sequences need several blocks.
BLOCK = 20_000


def align(wanted: Sequence[str], found: Sequence[str], *, block: int = BLOCK) -> dict[int, int]:
    """Positions in `wanted` to positions in `found`, both rising, as many as there can be within a block; of each but
    the last the first half counts, since its end does not know what comes after."""
    pairs: dict[int, int] = {}
    row = column = 0
    while row < len(wanted) and column < len(found):
        is_last = row + block >= len(wanted)
        # As much of the one as of the other: with more, parts far ahead could be taken for these.
        reach = math.ceil(block * (len(found) - column) / (len(wanted) - row))
        part = found[column:] if is_last else found[column : column + reach]
        kept = [pair for pair in _pairs(wanted[row : row + block], part) if is_last or pair[0] < block // 2]
        pairs |= {row + i: column + j for i, j in kept}
        if is_last:
            break
        row += block // 2
        column += kept[-1][1] + 1 if kept else 0
    return pairs


def _pairs(wanted: Sequence[str], found: Sequence[str]) -> list[tuple[int, int]]:
    rows = _rows(wanted, found)
    pairs: list[tuple[int, int]] = []
    i, j = len(wanted), len(found)
    while i and j:
        if rows[i] >> (j - 1) & 1:
            j -= 1
        elif not rows[i - 1] >> (j - 1) & 1:
            i -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]


def _rows(wanted: Sequence[str], found: Sequence[str]) -> list[int]:
    """After each of `wanted`: a bit that is 0 where the length of the common sequence grows (Hyyrö 2004, Bit-parallel
    LCS-length computation revisited)."""
    every = (1 << len(found)) - 1
    places: dict[str, int] = {}
    for j, name in enumerate(found):
        places[name] = places.get(name, 0) | 1 << j
    rows = [every]
    for name in wanted:
        matching = rows[-1] & places.get(name, 0)
        rows.append((rows[-1] + matching | rows[-1] - matching) & every)
    return rows
