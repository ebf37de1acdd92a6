"""Verdicts as a section of text, as sentences and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torchgauge.report.budgets.contributors import PEAKS
from torchgauge.report.budgets.limits import KEYS
from torchgauge.report.budgets.verdicts import UNKNOWN, WITHIN, BudgetReport, Verdict
from torchgauge.report.escape import visible
from torchgauge.report.formats.text import sections_lines
from torchgauge.report.json_text import json_line
from torchgauge.report.layout import Line, plain
from torchgauge.report.model import Block, Cell, Section, Table, Text, figures, notes, texts
from torchgauge.report.ranking import THE_MODEL
from torchgauge.units import format_percent

SCHEMA_VERSION = 1


def budget_lines(reports: Sequence[BudgetReport], width: int) -> list[Line]:
    return sections_lines(map(budget_section, reports), width)


def render_text(reports: Sequence[BudgetReport], width: int) -> str:
    return plain(budget_lines(reports, width))


def budget_section(report: BudgetReport) -> Section:
    rows = tuple(
        (
            Cell(verdict.limit.key),
            Cell(verdict.value_text),
            Cell(verdict.limit.text),
            Cell(verdict.used_text),
            Cell(verdict.state, is_warning=verdict.state != WITHIN),
        )
        for verdict in report.verdicts
    )
    blocks: list[Block] = [Table("", (*texts("Figure"), *figures("Value", "Limit", "used"), *texts("")), rows)]
    for verdict in report.broken:
        key = verdict.limit.key
        who = "the modules in which more than that is alive:" if key in PEAKS else "the largest contributors:"
        blocks.append(Text(f"{key} is {verdict.over_text} over its limit; {who}"))
        blamed = tuple(
            (
                Cell(name=entry.paths or THE_MODEL),
                Cell(name=entry.kind),
                Cell(str(entry.count)),
                Cell(KEYS[key].form(entry.value)),
                Cell(format_percent(entry.share)),
            )
            for entry in verdict.blamed
        )
        if blamed:
            blocks.append(Table("", (*texts("Module", "Type"), *figures("×", "", "share")), blamed))
    blocks += notes(unknown_words(report), is_warning=True)
    return Section(f"Budget of {report.target or report.kind}", tuple(blocks))


def budget_document(reports: Sequence[BudgetReport]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "document": "budgets",
        "exit_status": max((report.exit_status for report in reports), default=0),
        "targets": [
            {
                "target": report.target,
                "exit_status": report.exit_status,
                "failure": report.failure,
                "verdicts": [
                    {
                        "key": verdict.limit.key,
                        "limit": verdict.limit.most,
                        "value": verdict.value,
                        "state": verdict.state,
                        "reason": verdict.reason,
                        "blamed": [asdict(entry) for entry in verdict.blamed],
                    }
                    for verdict in report.verdicts
                ],
            }
            for report in reports
        ],
    }


def render_json(reports: Sequence[BudgetReport]) -> str:
    return json_line(budget_document(reports)) + "\n"


def verdict_words(verdict: Verdict) -> str:
    key = verdict.limit.key
    if verdict.state == UNKNOWN:
        return visible(f"{key} is not known: {verdict.reason}")
    return f"{key} is {verdict.value_text}, {verdict.over_text} over its limit of {verdict.limit.text}"


def unknown_words(report: BudgetReport) -> list[str]:
    """What is unknown, and why; one reason for all if the target itself failed."""
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
