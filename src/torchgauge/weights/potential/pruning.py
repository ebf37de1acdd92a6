"""What could be removed from a tensor: the largest share whose L2 norm is at most 1 % and 5 % of the whole's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.counting.ranges import ranges_of
from torchgauge.weights.counting.tally import Tally
from torchgauge.weights.potential.blocks import common_exponent, scaled_blocks
from torchgauge.weights.potential.heads import head_energies
from torchgauge.weights.stream.rows import Rows

TOLERANCES = ("0.01", "0.05")
# Sums are rounded: what is at the limit on paper counts as within.
_SLACK = 1 + 1e-12

Floats = NDArray[np.float64]


def unstructured(tally: Tally, *, exact_values: Floats | None = None) -> dict[str, Any]:
    """Single values, the smallest first; share of the finite ones. Of values that share a range of magnitudes as many
    as fit."""
    ranges = ranges_of(tally, exact_values=exact_values)
    return {"magnitude": _removable(ranges.mean_squares(), ranges.counts) if ranges else dict.fromkeys(TOLERANCES)}


def structured(rows: Rows, *, heads: int | None = None) -> dict[str, Any]:
    """Whole rows, columns, channels and heads, those with the smallest norm first; null where a tensor has none.

    `channels` are those of a convolution's second dimension (its inputs): the first one's are the rows. `heads` is how
    many the attention has. `two_four_energy` is the share of Σv² that 2:4 sparsity along the rows keeps."""
    shape = rows.tensor_shape
    if len(shape) < 2 or 0 in shape:
        return dict.fromkeys(("rows", "columns", "channels", "heads", "two_four_energy"))
    by_row, by_column, kept = _energies(rows)
    channels = by_column.reshape(shape[1], -1).sum(axis=1) if len(shape) > 2 else None
    by_head = head_energies(rows.name, by_row, by_column, heads) if heads and len(shape) == 2 else None
    total = float(by_row.sum())
    return {
        "rows": _removable(by_row),
        "columns": _removable(by_column),
        "channels": None if channels is None else _removable(channels),
        "heads": None if by_head is None else _removable(by_head),
        "two_four_energy": kept / total if total else None,
    }


def _energies(rows: Rows) -> tuple[Floats, Floats, float]:
    from torchgauge.weights.kernels.energies import add_energies

    by_row, by_column = np.zeros(rows.shape[0]), np.zeros(rows.shape[1])
    kept, start = 0.0, 0
    for block in scaled_blocks(rows, common_exponent(rows)):
        kept += add_energies(block, by_row[start : start + len(block)], by_column)
        start += len(block)
    return by_row, by_column, kept


def _removable(energies: Floats, counts: Floats | None = None) -> dict[str, Any]:
    """Shares of parts that have these energies each; all of them, if they have none."""
    order = np.argsort(energies)
    energies = energies[order]
    counts = np.ones_like(energies) if counts is None else counts[order]
    sums = np.cumsum(energies * counts)
    return {text: _share_within(float(text) ** 2 * sums[-1] * _SLACK, energies, counts, sums) for text in TOLERANCES}


def _share_within(budget: float, energies: Floats, counts: Floats, sums: Floats) -> float:
    whole = int(np.searchsorted(sums, budget, side="right"))
    removed = float(counts[:whole].sum())
    if whole < len(sums):
        spent = float(sums[whole - 1]) if whole else 0.0
        removed += float((budget - spent) // energies[whole])
    return removed / float(counts.sum())
