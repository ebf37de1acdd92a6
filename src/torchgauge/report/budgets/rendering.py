"""Verdicts as a section of text, as sentences and as JSON; for CI as JUnit XML and as workflow commands of GitHub
Actions, which shows them next to the code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from xml.etree import ElementTree as ET

from torchgauge.report.budgets.verdicts import BROKEN, KEYS, PEAKS, UNKNOWN, WITHIN, BudgetReport, Verdict
from torchgauge.report.escape import json_line
from torchgauge.report.formats.text import sections_lines
from torchgauge.report.layout import PLAIN_WIDTH, Line, plain
from torchgauge.report.model import Block, Cell, Section, Text, figures, names, notes, table, texts
from torchgauge.report.ranking import THE_MODEL
from torchgauge.units import format_percent, visible

SCHEMA_VERSION = 1


def budget_lines(reports: Sequence[BudgetReport], width: int) -> list[Line]:
    alarms = [f"{report.target or report.kind}: {found.text}" for report in reports for found in report.findings]
    sections = [budget_section(report) for report in reports]
    if alarms:
        sections.insert(0, Section("", tuple(Text(text, is_alarm=True) for text in alarms)))
    return sections_lines(sections, width)


def render_text(reports: Sequence[BudgetReport], width: int = PLAIN_WIDTH) -> str:
    return plain(budget_lines(reports, width))


def budget_section(report: BudgetReport) -> Section:
    rows = []
    for verdict in report.verdicts:
        state = Cell(verdict.state, is_warning=verdict.state != WITHIN)
        rows.append((verdict.limit.key, verdict.value_text, verdict.limit.text, verdict.used_text, state))
    blocks: list[Block] = [table((*texts("Figure"), *figures("Value", "Limit", "used"), *texts("")), rows)]
    for verdict in report.broken:
        key = verdict.limit.key
        who = "modules whose live memory exceeds it:" if key in PEAKS else "the largest contributors:"
        blocks.append(Text(f"{key} is {verdict.over_text} over its limit; {who}"))
        blamed = [
            (one.paths or THE_MODEL, one.kind, str(one.count), KEYS[key].form(one.value), format_percent(one.share))
            for one in verdict.blamed
        ]
        if blamed:
            blocks.append(table((*names("Module", "Type"), *figures("×", "", "share")), blamed))
    blocks += notes(unknown_words(report), is_warning=True)
    return Section(f"Budget of {report.target or report.kind}", tuple(blocks))


def budget_document(reports: Sequence[BudgetReport]) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "document": "budgets",
        "exit_status": max((report.exit_status for report in reports), default=0),
        "targets": [
            {
                "target": report.target,
                "exit_status": report.exit_status,
                "failure": report.failure,
                "findings": [found._asdict() for found in report.findings],
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
    """The unknown figures, and why; one reason for all if the target itself failed."""
    if report.failure is not None:
        return [visible(f"not checked: {report.failure}")]
    return [verdict_words(verdict) for verdict in report.unknown]


def contributor_texts(verdict: Verdict) -> list[str]:
    form = KEYS[verdict.limit.key].form
    return [
        f"{visible(entry.paths or THE_MODEL)} ({visible(entry.kind)}"
        f"{f' ×{entry.count}' if entry.count > 1 else ''}): {form(entry.value)}, {format_percent(entry.share)}"
        for entry in verdict.blamed
    ]


def render_junit(reports: Sequence[BudgetReport]) -> str:
    root = ET.Element("testsuites", {"name": "torchgauge budgets"} | _counts(reports))
    for report in reports:
        name = visible(report.target or report.kind)
        suite = ET.SubElement(root, "testsuite", {"name": name} | _counts([report]))
        for found in report.unsafe:
            case = ET.SubElement(suite, "testcase", classname=name, name=f"{found.label} is safe")
            ET.SubElement(case, "failure", message=visible(found.text), type="unsafe file")
        for verdict in report.verdicts:
            case = ET.SubElement(suite, "testcase", classname=name, name=f"{verdict.limit.key} ≤ {verdict.limit.text}")
            if verdict.state == BROKEN:
                failure = ET.SubElement(case, "failure", message=verdict_words(verdict), type="budget")
                failure.text = "\n".join(contributor_texts(verdict))
            elif verdict.state == UNKNOWN:
                ET.SubElement(case, "error", message=verdict_words(verdict), type="unknown")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _counts(reports: Sequence[BudgetReport]) -> dict[str, str]:
    states = [verdict.state for report in reports for verdict in report.verdicts]
    states += [BROKEN for report in reports for _ in report.unsafe]
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
        for found in report.unsafe:
            title = f"{name}: unsafe file".translate(_PROPERTY)
            lines.append(f"::error title={title}::{visible(found.text).translate(_DATA)}\n")
        for verdict in report.verdicts:
            if verdict.state != WITHIN:
                title = f"{name}: {verdict.limit.key}".translate(_PROPERTY)
                message = "\n".join([verdict_words(verdict), *contributor_texts(verdict)]).translate(_DATA)
                lines.append(f"::error {place}title={title}::{message}\n")
    return "".join(lines)
