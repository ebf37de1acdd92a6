from __future__ import annotations

from torchgauge.facts import View
from torchgauge.report.csv_rows import rows_to_csv
from torchgauge.report.options import Options


def render_modules_csv(view: View, options: Options) -> str:
    """One line per module, preorder, all columns."""
    return rows_to_csv(view.modules)
