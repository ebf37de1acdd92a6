"""Weight statistics by op: what pruning and quantization would do for each operation that uses weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torchgauge.facts.module import ParamRecord
from torchgauge.facts.op import FREE, OpRecord
from torchgauge.facts.weight_values import Figures, quantization_of, removable

RELATIVE_ERRORS, SQNR_LEVELS_DB = ("0.01", "0.05"), (30, 20)


def weight_ops(
    ops: Iterable[OpRecord], rows: Iterable[Figures], params: Iterable[ParamRecord] = ()
) -> list[dict[str, Any]]:
    """One row per op call that uses weights whose values were read, in execution order; views are left out.

    Only tensors of two or more dimensions are quantized: for a vector, scales would cost more than is saved.
    """
    known = _by_model_name(rows, params)
    used_by = ((op, [known[name] for name in op.weights if name in known]) for op in ops if op.status != FREE)
    return [_op_row(op, used) for op, used in used_by if used]


def _by_model_name(rows: Iterable[Figures], params: Iterable[ParamRecord]) -> dict[str, Figures]:
    """A file may prefix the names of the model, or store a tied parameter under another of its names."""
    known: dict[str, Figures] = {}
    for row in rows:
        if row.get("quantization") is not None:
            module, name = row.get("module"), str(row["name"])
            own = name.rpartition(".")[2]
            known[name if module is None else f"{module}.{own}" if module else own] = row
    for param in params:
        alias = next((name for name in param.aliases if name in known), None)
        if alias is not None:
            known.setdefault(param.name, known[alias])
    return known


def _op_row(op: OpRecord, used: Sequence[Figures]) -> dict[str, Any]:
    largest = max(used, key=lambda row: row["bytes"])
    return {
        "index": op.index,
        "op": op.op,
        "module": op.module,
        "category": op.category,
        "weights": [row["name"] for row in used],
        "elements": sum(row["elements"] for row in used),
        "bytes": sum(row["bytes"] for row in used),
        "removable": {error: _removable(used, error) for error in RELATIVE_ERRORS},
        **{f"smallest_{level}db": quantization_of(largest).get(f"smallest_{level}db") for level in SQNR_LEVELS_DB},
        "bytes_after": {f"{level}db": sum(_bytes_after(row, level) for row in used) for level in SQNR_LEVELS_DB},
    }


def _removable(used: Sequence[Figures], error: str) -> float | None:
    """The share of all elements that can be pruned at this relative error per tensor."""
    known = [(row["elements"], share) for row in used if (share := removable(row, error)) is not None]
    count = sum(elements for elements, _ in known)
    return sum(elements * share for elements, share in known) / count if count else None


def _bytes_after(row: Figures, level: int) -> int:
    after = (quantization_of(row).get("bytes_after") or {}).get(f"smallest_{level}db")
    stored = int(row["bytes"])
    return stored if after is None or len(row["shape"]) < 2 else min(stored, int(after))
