from __future__ import annotations

from torchgauge.facts import View
from torchgauge.report.csv_rows import rows_to_csv
from torchgauge.report.options import Options
from torchgauge.report.row_columns import op_columns


def render_ops_csv(view: View, options: Options) -> str:
    """One line per op call, in the order of execution."""
    return rows_to_csv(view.ops, op_columns(view))
