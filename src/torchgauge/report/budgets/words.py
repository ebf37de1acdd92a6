"""A verdict in one sentence, and those to blame in a line each."""

from __future__ import annotations

from torchgauge.report.budgets.limits import KEYS
from torchgauge.report.budgets.verdicts import UNKNOWN, BudgetReport, Verdict
from torchgauge.report.escape import visible
from torchgauge.report.ranking import THE_MODEL
from torchgauge.units import format_percent


def verdict_words(verdict: Verdict) -> str:
    key = verdict.limit.key
    if verdict.state == UNKNOWN:
        return visible(f"{key} is not known: {verdict.reason}")
    return f"{key} is {verdict.value_text}, {verdict.over_text} over its limit of {verdict.limit.text}"


def unknown_words(report: BudgetReport) -> list[str]:
    """What nobody can tell, and why; one reason for all where the target itself is to blame."""
    if report.failure is not None:
        return [visible(f"not checked: {report.failure}")]
    return [verdict_words(verdict) for verdict in report.unknown]


def blame_words(verdict: Verdict) -> list[str]:
    form = KEYS[verdict.limit.key].form
    return [
        f"{visible(entry.paths or THE_MODEL)} ({visible(entry.kind)}"
        f"{f' ×{entry.count}' if entry.count > 1 else ''}): {form(entry.value)}, {format_percent(entry.share)}"
        for entry in verdict.blamed
    ]
