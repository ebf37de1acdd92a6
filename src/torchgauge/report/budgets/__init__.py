"""A model against its budget: judged first, then rendered; one file per format."""

from __future__ import annotations

from torchgauge.report.budgets.ci import is_in_actions, render_annotations, render_junit
from torchgauge.report.budgets.contributors import PEAKS
from torchgauge.report.budgets.limits import KEYS, Limit, analysis_needs, limit, limits, parse_limit
from torchgauge.report.budgets.text import budget_lines, render_json, render_text
from torchgauge.report.budgets.verdicts import BudgetReport, Verdict, check_view, unchecked

__all__ = [
    "KEYS", "PEAKS", "BudgetReport", "Limit", "Verdict", "analysis_needs", "budget_lines", "check_view",
    "is_in_actions", "limit", "limits", "parse_limit", "render_annotations", "render_json", "render_junit",
    "render_text", "unchecked",
]  # fmt: skip
