"""What could be removed from a tensor: the largest share whose L2 norm is at most 1 % and 5 % of the whole's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.distribution import ranges_of
from torchgauge.weights.rows import Rows, common_exponent, scaled_blocks
from torchgauge.weights.tally import Tally

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
    from torchgauge.weights.kernels.pruning import add_energies

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


_QUERIES = {"q_proj", "query", "q", "to_q", "wq", "q_lin", "query_proj"}
_KEYS_AND_VALUES = {
    "k_proj", "key", "k", "to_k", "wk", "k_lin", "key_proj",
    "v_proj", "value", "v", "to_v", "wv", "v_lin", "value_proj",
}  # fmt: skip
# Queries, keys and values one below the other, each with all heads.
_FUSED = {"in_proj", "in_proj_weight", "qkv", "qkv_proj", "to_qkv", "wqkv"}
_OUTPUTS = {"o_proj", "out_proj", "o", "to_out", "wo", "out_lin"}
# Names that say too little where the module around them is not attention.
_OUTPUTS_OF_ATTENTION = {"proj", "dense"}


def head_energies(name: str, rows: Floats, columns: Floats, heads: int) -> Floats | None:
    """Σv² of every head, from those of the rows and the columns; None where the name is not one of an attention
    projection, or the heads do not divide it."""
    path = [part for part in name.lower().split(".") if part not in ("weight", "0")]
    last = path[-1] if path else ""
    if last in _QUERIES:
        return _by_head(rows, heads)
    if last in _KEYS_AND_VALUES:
        return _by_head(rows, _key_heads(len(rows), len(columns), heads))
    if last in _FUSED:
        return None if len(rows) % (3 * heads) else rows.reshape(3, heads, -1).sum(axis=(0, 2))
    around = any("attn" in part or "attention" in part for part in path[:-1])
    if last in _OUTPUTS or (last in _OUTPUTS_OF_ATTENTION and around):
        return _by_head(columns, heads)
    return None


def _key_heads(rows: int, columns: int, heads: int) -> int:
    """With grouped queries keys have fewer heads, of the same width; 0 where that cannot be told."""
    if rows >= columns:
        return heads
    width, rest = divmod(columns, heads)
    return 0 if rest or rows % width else rows // width


def _by_head(energies: Floats, heads: int) -> Floats | None:
    return energies.reshape(heads, -1).sum(axis=1) if heads and len(energies) % heads == 0 else None
