"""Verdicts for CI: JUnit XML with a suite for each target and a case for each limit, and workflow commands of GitHub
Actions, which shows them beside the code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from torchgauge.report.budgets.text import blame_words, verdict_words
from torchgauge.report.budgets.verdicts import BROKEN, UNKNOWN, WITHIN, BudgetReport, Verdict
from torchgauge.report.escape import visible


def render_junit(reports: Sequence[BudgetReport]) -> str:
    root = ET.Element("testsuites", {"name": "torchgauge budgets"} | _counts([v for r in reports for v in r.verdicts]))
    for report in reports:
        name = visible(report.target or report.kind)
        suite = ET.SubElement(root, "testsuite", {"name": name} | _counts(report.verdicts))
        for verdict in report.verdicts:
            case = ET.SubElement(suite, "testcase", classname=name, name=f"{verdict.limit.key} ≤ {verdict.limit.text}")
            if verdict.state == BROKEN:
                failure = ET.SubElement(case, "failure", message=verdict_words(verdict), type="budget")
                failure.text = "\n".join(blame_words(verdict))
            elif verdict.state == UNKNOWN:
                ET.SubElement(case, "error", message=verdict_words(verdict), type="unknown")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _counts(verdicts: Sequence[Verdict]) -> dict[str, str]:
    states = [verdict.state for verdict in verdicts]
    counts = {"tests": len(states), "failures": states.count(BROKEN), "errors": states.count(UNKNOWN)}
    return {key: str(count) for key, count in counts.items()}


# The runner's own escapes; in a property a comma and a colon end it.
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _DATA | str.maketrans({":": "%3A", ",": "%2C"})


def render_annotations(reports: Sequence[BudgetReport]) -> str:
    """One line per limit that is broken or not known; nothing where all is well."""
    lines = []
    for report in reports:
        name = visible(report.target or report.kind)
        # The file of `path/to/file.py:Name`.
        file, separator, _ = report.target.rpartition(":")
        is_code = separator and file.endswith(".py")
        place = f"file={visible(file).translate(_PROPERTY)}," if is_code else ""
        for verdict in report.verdicts:
            if verdict.state != WITHIN:
                title = f"{name}: {verdict.limit.key}".translate(_PROPERTY)
                message = "\n".join([verdict_words(verdict), *blame_words(verdict)]).translate(_DATA)
                lines.append(f"::error {place}title={title}::{message}\n")
    return "".join(lines)


def is_in_actions() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"
