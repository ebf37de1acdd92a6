from __future__ import annotations

from torchgauge.facts import View
from torchgauge.report.csv_rows import rows_to_csv
from torchgauge.report.options import Options
from torchgauge.report.row_columns import weight_columns
from torchgauge.report.weight_columns import flat_rows


def render_weights_csv(view: View, options: Options) -> str:
    """One line per tensor, in the order of the files."""
    rows = flat_rows(view.weights)
    return rows_to_csv(rows, weight_columns(rows))
