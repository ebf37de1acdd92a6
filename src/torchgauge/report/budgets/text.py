"""Verdicts as lines of text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torchgauge.report.budgets.contributors import PEAKS, Contributor
from torchgauge.report.budgets.limits import KEYS
from torchgauge.report.budgets.verdicts import BROKEN, UNKNOWN, BudgetReport, Verdict
from torchgauge.report.budgets.words import unknown_words
from torchgauge.report.escape import visible
from torchgauge.report.json_text import json_line
from torchgauge.report.layout import Heading, Line, Span, lay_out, plain, wrap
from torchgauge.report.ranking import THE_MODEL
from torchgauge.report.sections import figure, heading, text_cell
from torchgauge.units import format_percent

SCHEMA_VERSION = 1


def budget_lines(reports: Sequence[BudgetReport], width: int) -> list[Line]:
    lines: list[Line] = []
    for report in reports:
        lines += [(), *_lines(report, width)] if lines else _lines(report, width)
    return lines


def render_text(reports: Sequence[BudgetReport], width: int) -> str:
    return plain(budget_lines(reports, width))


def _lines(report: BudgetReport, width: int) -> list[Line]:
    headings = [Heading("Figure", is_figure=False), Heading("Value"), Heading("Limit"), Heading("used")]
    headings.append(Heading("", is_figure=False))
    rows = [_cells(verdict) for verdict in report.verdicts]
    named = report.target or report.kind
    lines = [heading(f"Budget of {visible(named)}"), *lay_out(headings, rows, width)]
    for verdict in report.broken:
        lines += [(), *_blame(verdict, width)]
    for text in unknown_words(report):
        lines += wrap(text, width, lead=(Span("- "),), style="warning")
    return lines


def _cells(verdict: Verdict) -> list[Line]:
    style = "warning" if verdict.state in (BROKEN, UNKNOWN) else "dim"
    used = figure(verdict.used_text)
    return [
        text_cell(verdict.limit.key),
        figure(verdict.value_text),
        figure(verdict.limit.text),
        used,
        (Span(verdict.state, style),),
    ]


def _blame(verdict: Verdict, width: int) -> list[Line]:
    title = f"{verdict.limit.key} is {verdict.over_text} over its limit; {blame_title(verdict)}"
    headings = [Heading("Module", is_figure=False), Heading("Type", is_figure=False), Heading("×"), Heading("")]
    rows = [[*_blamed(entry, verdict), figure(format_percent(entry.share))] for entry in verdict.blamed]
    return wrap(title, width) + (lay_out([*headings, Heading("share")], rows, width) if rows else [])


def blame_title(verdict: Verdict) -> str:
    if verdict.limit.key in PEAKS:
        return "the modules in which more than that is alive:"
    return "the largest contributors:"


def _blamed(entry: Contributor, verdict: Verdict) -> list[Line]:
    return [
        text_cell(entry.paths or THE_MODEL),
        text_cell(entry.kind, "dim"),
        figure(str(entry.count)),
        figure(KEYS[verdict.limit.key].form(entry.value)),
    ]


def budget_document(reports: Sequence[BudgetReport]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "document": "budgets",
        "exit_status": max((report.exit_status for report in reports), default=0),
        "targets": [_target(report) for report in reports],
    }


def render_json(reports: Sequence[BudgetReport]) -> str:
    return json_line(budget_document(reports)) + "\n"


def _target(report: BudgetReport) -> dict[str, Any]:
    return {
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
