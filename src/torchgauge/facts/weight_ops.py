"""The figures of weights joined to the ops that use them: what pruning and quantization would do for each operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torchgauge.facts.module import ParamRecord
from torchgauge.facts.op import FREE, OpRecord
from torchgauge.facts.weight_values import Figures, quantization_of, removable

ERRORS, LEVELS = ("0.01", "0.05"), (30, 20)


def weight_ops(
    ops: Iterable[OpRecord], rows: Iterable[Figures], params: Iterable[ParamRecord] = ()
) -> list[dict[str, Any]]:
    """One row for each op call that works on weights whose values were read, in the order of execution; not for views.

    Only tensors of two and more dimensions are quantized: scales would outweigh what a vector saves.
    """
    known = _by_name(rows, params)
    found = []
    for op in ops:
        used = [known[name] for name in op.weights if name in known]
        if used and op.status != FREE:
            found.append(_op_row(op, used))
    return found


def _by_name(rows: Iterable[Figures], params: Iterable[ParamRecord]) -> dict[str, Figures]:
    """Rows by the names of the model: a file may keep them in containers, or a tied one under another of its names."""
    known = {_model_name(row): row for row in rows if row.get("quantization") is not None}
    for param in params:
        alias = next((name for name in param.aliases if name in known), None)
        if alias is not None:
            known.setdefault(param.name, known[alias])
    return known


def _model_name(row: Figures) -> str:
    module, name = row.get("module"), str(row["name"])
    own = name.rpartition(".")[2]
    return name if module is None else f"{module}.{own}" if module else own


def _op_row(op: OpRecord, used: Sequence[Figures]) -> dict[str, Any]:
    largest = max(used, key=lambda row: row["bytes"])
    nbytes, elements = sum(row["bytes"] for row in used), sum(row["elements"] for row in used)
    return {
        "index": op.index,
        "op": op.op,
        "module": op.module,
        "category": op.category,
        "weights": [row["name"] for row in used],
        "elements": elements,
        "bytes": nbytes,
        "removable": {error: _removable(used, error) for error in ERRORS},
        **{f"smallest_{level}db": quantization_of(largest).get(f"smallest_{level}db") for level in LEVELS},
        "bytes_after": {f"{level}db": sum(_bytes_after(row, level) for row in used) for level in LEVELS},
    }


def _removable(used: Sequence[Figures], error: str) -> float | None:
    """The share of all elements that may go when each tensor loses what it can spare."""
    known = [(row["elements"], share) for row in used if (share := removable(row, error)) is not None]
    count = sum(elements for elements, _ in known)
    return sum(elements * share for elements, share in known) / count if count else None


def _bytes_after(row: Figures, level: int) -> int:
    after = (quantization_of(row).get("bytes_after") or {}).get(f"smallest_{level}db")
    stored = int(row["bytes"])
    return stored if after is None or len(row["shape"]) < 2 else min(stored, int(after))
