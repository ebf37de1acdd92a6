"""A model against its budget: judged first, then rendered; one file per format."""

from __future__ import annotations

from torchgauge.report.budgets.rendering import budget_lines, render_annotations, render_json, render_junit, render_text
from torchgauge.report.budgets.verdicts import (
    KEYS,
    PEAKS,
    BudgetReport,
    Increase,
    Limit,
    Verdict,
    analysis_needs,
    check_view,
    limit,
    limits,
    parse_limit,
    unchecked,
)

__all__ = [
    "KEYS", "PEAKS", "BudgetReport", "Increase", "Limit", "Verdict", "analysis_needs", "budget_lines", "check_view",
    "limit", "limits", "parse_limit", "render_annotations", "render_json", "render_junit", "render_text", "unchecked",
]  # fmt: skip
