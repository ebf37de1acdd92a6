"""Analyses side by side: compared, turned into sections, rendered."""

from __future__ import annotations

from torchgauge.report.comparison.data import Compared, Figure, WeightsCompared, compare_views
from torchgauge.report.comparison.document import comparison_document, flat_modules, render, save, to_dataframe
from torchgauge.report.comparison.readings import Change, Reading, change
from torchgauge.report.comparison.structure import FIGURES, ModuleChange

__all__ = [
    "FIGURES", "Change", "Compared", "Figure", "ModuleChange", "Reading", "WeightsCompared", "change", "compare_views",
    "comparison_document", "flat_modules", "render", "save", "to_dataframe",
]  # fmt: skip
