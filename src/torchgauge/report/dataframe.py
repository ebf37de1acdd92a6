"""Rows as a pandas DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchgauge.errors import MissingDependencyError, UsageError
from torchgauge.facts import Row, View
from torchgauge.report.row_columns import op_columns, weight_columns
from torchgauge.report.weight_columns import flat_rows

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("modules", "ops", "weights")


def to_dataframe(view: View, table: str = "modules") -> pd.DataFrame:
    if table not in TABLES:
        raise UsageError(f"there is no table '{table}'; choose from: {', '.join(TABLES)}")
    rows, columns = _rows(view, table)
    return frame([dict(row) for row in rows], columns)


def frame(rows: list[dict[str, Any]], columns: list[str] | None = None) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError("pandas", "a DataFrame") from error
    return pd.DataFrame.from_records(rows, columns=columns)


def _rows(view: View, table: str) -> tuple[list[Row], list[str]]:
    if table == "weights":
        rows = flat_rows(view.weights)
        return rows, weight_columns(rows)
    return (view.ops, op_columns(view)) if table == "ops" else (view.modules, list(view.modules[0]))
