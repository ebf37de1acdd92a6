"""Analyses side by side: compared, turned into sections, rendered."""

from __future__ import annotations

from torchgauge.report.comparison.data import Compared, compare_views
from torchgauge.report.comparison.document import render, save, to_dataframe

__all__ = ["Compared", "compare_views", "render", "save", "to_dataframe"]
