"""Analyses side by side: compared first, then rendered; one file per format."""

from __future__ import annotations

from torchgauge.report.comparison.data import Compared, compare_views
from torchgauge.report.comparison.saving import render, save, to_dataframe

__all__ = ["Compared", "compare_views", "render", "save", "to_dataframe"]
