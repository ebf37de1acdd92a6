"""The columns of a table that may have no rows: a reader of many files finds them all the same."""

from __future__ import annotations

from dataclasses import replace

from torchgauge.facts import FREE, Cost, OpRecord, Row, Signature, StoredTensor, TensorSpec, View
from torchgauge.facts.files import weight_row

_OP = OpRecord(0, Signature("", "", "other", FREE, (), (), (), {}, Cost(), 0), "", 0)
_TENSOR = StoredTensor("", TensorSpec(()), 0, "", None)


def op_columns(view: View) -> list[str]:
    rows = view.ops or View(replace(view.capture, ops=(_OP,))).ops
    return list(rows[0])


def weight_columns(rows: list[Row]) -> list[str]:
    """Of rows made flat; without any, what is said of a tensor whose values were not read."""
    return list(rows[0] if rows else weight_row(_TENSOR))
