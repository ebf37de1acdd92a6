"""Rows as CSV: modules, ops, tensors, and what changed against another checkpoint."""

from __future__ import annotations

from torchgauge.errors import UsageError
from torchgauge.facts import Row, View
from torchgauge.report.options import Options
from torchgauge.report.registry import renderer
from torchgauge.report.table_rows import flat_rows, op_columns, rows_to_csv, weight_columns


@renderer("csv", suffix=".csv", contents="one row per module", note="modules")
def render_modules_csv(view: View, options: Options) -> str:
    """One line per module, preorder, all columns."""
    return rows_to_csv(view.modules)


@renderer("ops.csv", suffix=".ops.csv", contents="one row per op")
def render_ops_csv(view: View, options: Options) -> str:
    """One line per op call, in the order of execution."""
    return rows_to_csv(view.ops, op_columns(view))


@renderer(
    "weights.csv",
    suffix=".weights.csv",
    contents="one row per tensor, nested figures flat: `quantile_0.5`, `int8_per_tensor_sqnr_db`",
    scans=(".csv", ".weights.csv"),
)
def render_weights_csv(view: View, options: Options) -> str:
    """One line per tensor, in the order of the files."""
    rows = flat_rows(view.weights)
    return rows_to_csv(rows, weight_columns(rows))


@renderer(
    "against.csv",
    contents="the comparison with another checkpoint (`--against`)",
    note="with --against",
    scans=(".against.csv",),
)
def render_against_csv(view: View, options: Options) -> str:
    """One line per tensor that came, went or changed, the largest change first."""
    found = view.capture.statistics.against if view.capture.statistics else None
    if found is None:
        raise UsageError("there is nothing to compare with: --against B names the other checkpoint")
    rows = [Row(state="changed", **row) for row in found["changed"]]
    for state in ("reshaped", "added", "removed"):
        rows += [Row(state=state, **row) for row in found[state]]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return rows_to_csv([Row({key: row.get(key) for key in columns}) for row in rows], ("state", "name"))
