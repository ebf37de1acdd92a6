"""Rows as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchgauge.errors import MissingDependencyError, UsageError
from torchgauge.facts import View
from torchgauge.report.table_rows import flat_rows, op_columns, weight_columns

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("modules", "ops", "weights")


def frame(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> pd.DataFrame:
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
