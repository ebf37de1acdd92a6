"""Verdicts as JUnit XML: a suite for each target, a case for each limit."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from torchgauge.report.budgets.verdicts import BROKEN, UNKNOWN, BudgetReport, Verdict
from torchgauge.report.budgets.words import blame_words, verdict_words
from torchgauge.report.escape import visible


def render_junit(reports: Sequence[BudgetReport]) -> str:
    root = ET.Element("testsuites", {"name": "torchgauge budgets"} | _counts([v for r in reports for v in r.verdicts]))
    for report in reports:
        name = visible(report.target or report.kind)
        suite = ET.SubElement(root, "testsuite", {"name": name} | _counts(report.verdicts))
        for verdict in report.verdicts:
            _case(suite, name, verdict)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _counts(verdicts: Sequence[Verdict]) -> dict[str, str]:
    states = [verdict.state for verdict in verdicts]
    counts = {"tests": len(states), "failures": states.count(BROKEN), "errors": states.count(UNKNOWN)}
    return {key: str(count) for key, count in counts.items()}


def _case(suite: ET.Element, target: str, verdict: Verdict) -> None:
    case = ET.SubElement(suite, "testcase", classname=target, name=f"{verdict.limit.key} ≤ {verdict.limit.text}")
    if verdict.state == BROKEN:
        failure = ET.SubElement(case, "failure", message=verdict_words(verdict), type="budget")
        failure.text = "\n".join(blame_words(verdict))
    elif verdict.state == UNKNOWN:
        ET.SubElement(case, "error", message=verdict_words(verdict), type="unknown")
