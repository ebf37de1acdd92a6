"""Pruning potential: the largest share of a tensor whose L2 norm is at most 1 % or 5 % of the whole's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint.tensor_names import (
    FUSED_PROJECTION_NAMES,
    KEY_NAMES,
    OUTPUT_PROJECTION_NAMES,
    QUERY_NAMES,
    VALUE_NAMES,
)
from torchgauge.weights.distribution import ranges_of
from torchgauge.weights.passes import add_energies
from torchgauge.weights.rows import Rows, common_exponent, scaled_blocks
from torchgauge.weights.tally import Tally

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Pruning

TOLERANCES = ("0.01", "0.05")
# Sums are rounded; a share exactly at the limit still counts.
_ROUNDING = 1 + 1e-12

# Output projections only if the module around them is attention.
_OUTPUTS_OF_ATTENTION = {"proj", "dense"}

Floats = NDArray[np.float64]
Shares = dict[str, float | None]


def unstructured_pruning(tally: Tally, *, exact_values: Floats | None = None) -> Pruning:
    """The share of single values that can be removed, the smallest first. Of values that share a range of magnitudes,
    as many as fit."""
    ranges = ranges_of(tally, exact_values=exact_values)
    if ranges is None:
        return {"magnitude": dict.fromkeys(TOLERANCES)}
    return {"magnitude": _removable_shares(ranges.mean_squares(), ranges.counts)}


def structured_pruning(rows: Rows, *, heads: int | None = None) -> Pruning:
    """The shares of rows, columns, channels and heads that can be removed, the smallest norm first; null if a tensor
    has none.

    `channels` are the input channels of a convolution (its second dimension); output channels are the rows. `heads` is
    the number of attention heads. `two_four_energy` is the share of Σv² that 2:4 sparsity along the rows keeps.
    """
    shape = rows.tensor_shape
    if len(shape) < 2 or 0 in shape:
        return {"rows": None, "columns": None, "channels": None, "heads": None, "two_four_energy": None}
    by_row, by_column = np.zeros(rows.shape[0]), np.zeros(rows.shape[1])
    kept, start = 0.0, 0
    for block in scaled_blocks(rows, common_exponent(rows)):
        kept += add_energies(block, by_row[start : start + len(block)], by_column, by_row.size * by_column.size)
        start += len(block)
    by_channel = by_column.reshape(shape[1], -1).sum(axis=1) if len(shape) > 2 else None
    by_head = head_energies(rows.name, by_row, by_column, heads) if heads and len(shape) == 2 else None
    total = float(by_row.sum())
    return {
        "rows": _removable_shares(by_row),
        "columns": _removable_shares(by_column),
        "channels": None if by_channel is None else _removable_shares(by_channel),
        "heads": None if by_head is None else _removable_shares(by_head),
        "two_four_energy": kept / total if total else None,
    }


def _removable_shares(energies: Floats, counts: Floats | None = None) -> Shares:
    """By tolerance, the share of parts with these energies that can be removed; all parts if they are all zero."""
    order = np.argsort(energies)
    energies = energies[order]
    counts = np.ones_like(energies) if counts is None else counts[order]
    sums = np.cumsum(energies * counts)
    shares: Shares = {}
    for tolerance in TOLERANCES:
        budget = float(tolerance) ** 2 * sums[-1] * _ROUNDING
        whole = int(np.searchsorted(sums, budget, side="right"))
        removed = float(counts[:whole].sum())
        if whole < len(sums):
            spent = float(sums[whole - 1]) if whole else 0.0
            removed += float((budget - spent) // energies[whole])
        shares[tolerance] = removed / float(counts.sum())
    return shares


def head_energies(name: str, rows: Floats, columns: Floats, heads: int) -> Floats | None:
    """Σv² of each head of an attention projection, from those of rows and columns; None if the name is not that of an
    attention projection, or the heads do not divide it."""
    path = [part for part in name.lower().split(".") if part not in ("weight", "0")]
    last = path[-1] if path else ""
    is_attention = any("attn" in part or "attention" in part for part in path[:-1])
    if last in FUSED_PROJECTION_NAMES:
        return None if len(rows) % (3 * heads) else rows.reshape(3, heads, -1).sum(axis=(0, 2))
    if last in QUERY_NAMES:
        energies = rows
    elif last in KEY_NAMES or last in VALUE_NAMES:
        energies = rows
        if len(rows) < len(columns):  # grouped-query attention: fewer heads of the same width
            width, rest = divmod(len(columns), heads)
            heads = 0 if rest or len(rows) % width else len(rows) // width
    elif last in OUTPUT_PROJECTION_NAMES or (last in _OUTPUTS_OF_ATTENTION and is_attention):
        energies = columns
    else:
        return None
    return energies.reshape(heads, -1).sum(axis=1) if heads and len(energies) % heads == 0 else None
