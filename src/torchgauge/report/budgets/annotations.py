"""Verdicts as workflow commands of GitHub Actions, which shows them beside the code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from torchgauge.report.budgets.verdicts import WITHIN, BudgetReport, Verdict
from torchgauge.report.budgets.words import blame_words, verdict_words
from torchgauge.report.escape import visible

# The runner's own escapes; in a property a comma and a colon end it.
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _DATA | str.maketrans({":": "%3A", ",": "%2C"})


def render_annotations(reports: Sequence[BudgetReport]) -> str:
    """One line per limit that is broken or not known; nothing where all is well."""
    lines = [_line(report, verdict) for report in reports for verdict in report.verdicts if verdict.state != WITHIN]
    return "".join(f"{line}\n" for line in lines)


def _line(report: BudgetReport, verdict: Verdict) -> str:
    named = visible(report.target or report.kind)
    place = f"file={_escaped(file, _PROPERTY)}," if (file := _code_file(report.target)) else ""
    title = _escaped(f"{named}: {verdict.limit.key}", _PROPERTY)
    message = "\n".join([verdict_words(verdict), *blame_words(verdict)])
    return f"::error {place}title={title}::{_escaped(message, _DATA)}"


def _code_file(target: str) -> str | None:
    """The file of `path/to/file.py:Name`."""
    file, separator, _ = target.rpartition(":")
    return visible(file) if separator and file.endswith(".py") else None


def _escaped(text: str, table: Mapping[int, str]) -> str:
    return text.translate(table)


def is_in_actions() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"
