"""Analyses side by side: compared, turned into sections, rendered."""

from __future__ import annotations

from torchgauge.report.comparison.changes import Change, change
from torchgauge.report.comparison.data import Compared, Figure, compare_views
from torchgauge.report.comparison.document import comparison_document, flat_modules, render, save, to_dataframe
from torchgauge.report.comparison.readings import Reading
from torchgauge.report.comparison.rows import FIGURES
from torchgauge.report.comparison.structure import ModuleChange
from torchgauge.report.comparison.weights import WeightsCompared

__all__ = [
    "FIGURES", "Change", "Compared", "Figure", "ModuleChange", "Reading", "WeightsCompared", "change", "compare_views",
    "comparison_document", "flat_modules", "render", "save", "to_dataframe",
]  # fmt: skip
