"""Rows of modules, ops and weights as flat tables: as CSV (raw figures, shapes as `1x3x224x224`, nested values as JSON)
and as a pandas DataFrame."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchgauge.errors import MissingDependencyError, UsageError
from torchgauge.facts import FREE, Cost, OpRecord, Row, Signature, StoredTensor, TensorSpec, View
from torchgauge.facts.figures import Members, Unit
from torchgauge.facts.files import weight_row
from torchgauge.report.escape import inert_cell, json_value

if TYPE_CHECKING:
    import pandas as pd


# Long lists say nothing in a cell; the JSON has them.
_LEFT_OUT = frozenset({"histogram", "singular_values", "code_counts"})
# The start of a nested name where the key itself would only be repeated.
_PREFIXES = {"quantiles": "quantile_", "quantization": "", "spectrum": ""}
_SEPARATOR = "; "
# Columns that only a flat row has; the others are in the table of figures.
FLAT = {
    "smallest_30db": Unit.TEXT,
    "smallest_20db": Unit.TEXT,
    "recommendations": Unit.TEXT,
    "histogram_edges": Unit.NUMBERS,
    "histogram_counts": Unit.NUMBERS,
}


def flat_rows(rows: Sequence[Row]) -> list[Row]:
    """All rows with the same columns, in the order in which they first appear; None where a row lacks one."""
    flat = [dict(_flat(row, "")) for row in rows]
    columns = dict.fromkeys(key for row in flat for key in row)
    return [Row({key: row.get(key) for key in columns}) for row in flat]


def _flat(mapping: Members, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if key in _LEFT_OUT:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, prefix + _PREFIXES.get(key, f"{key}_"))
        else:
            yield prefix + key, _SEPARATOR.join(value) if key == "recommendations" and value is not None else value


_OP = OpRecord(0, Signature("", "", "other", FREE, (), (), (), {}, Cost(), 0), "", 0)
_TENSOR = StoredTensor("", TensorSpec(()), 0, "", None)


def op_columns(view: View) -> list[str]:
    rows = view.ops or View(replace(view.capture, ops=(_OP,))).ops
    return list(rows[0])


def weight_columns(rows: list[Row]) -> list[str]:
    """The columns of flat rows; without rows, those of a tensor whose values were not read."""
    return list(rows[0] if rows else weight_row(_TENSOR))


def rows_to_csv(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    """`columns` head a table that may have no rows; where there are some, they name their own."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(inert_cell, rows[0] if rows else columns or ()))
    for row in rows:
        cells: list[object] = []
        for key, value in row.items():
            if isinstance(value, str):
                value = inert_cell(value)
            elif value is not None and (key == "shape" or key.endswith("_shapes")):
                shapes = [value] if key == "shape" else value
                value = " ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
            elif isinstance(value, list) and all(isinstance(item, str) for item in value):
                value = inert_cell(" ".join(value))
            elif isinstance(value, list | dict):
                value = inert_cell(json.dumps(json_value(value)))
            cells.append(value)
        writer.writerow(cells)
    return buffer.getvalue()


TABLES = ("modules", "ops", "weights")


def frame(rows: Iterable[Mapping[str, object]], columns: Sequence[str] | None = None) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError("pandas", "a DataFrame") from error
    return pd.DataFrame.from_records([dict(row) for row in rows], columns=columns)


def to_dataframe(view: View, table: str = "modules") -> pd.DataFrame:
    if table == "weights":
        rows = flat_rows(view.weights)
        return frame(rows, weight_columns(rows))
    if table == "ops":
        return frame(view.ops, op_columns(view))
    if table == "modules":
        return frame(view.modules, list(view.modules[0]))
    raise UsageError(f"there is no table '{table}'; choose from: {', '.join(TABLES)}")
