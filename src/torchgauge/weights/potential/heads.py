"""Where the heads of an attention projection lie in its matrix, by its name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

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
