"""Results as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from comparison import Result
from judging import Verdict


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def by_tool(results: Sequence[Result], cell: Callable[[Result], str]) -> str:
    """Tools down, models across."""
    subjects = list(dict.fromkeys(result.subject for result in results))
    tools = list(dict.fromkeys(result.tool for result in results))
    cells = {(result.tool, result.subject): cell(result) for result in results}
    return table(["tool", *subjects], [[tool, *(cells[tool, subject] for subject in subjects)] for tool in tools])


def ratio(result: Result) -> str:
    return "fails" if result.ratio is None else f"{result.ratio:.2f}"


def accuracy(result: Result) -> str:
    if result.accuracy is None:
        return "fails"
    return "exact" if result.macs == result.true_macs else f"{result.accuracy:.3f}"


def sweep(results: Iterable[Result]) -> str:
    rows = [
        [
            result.subject,
            f"{(result.true_macs or 0) / 1e9:.2f}",
            f"{(result.bare_s or 0) * 1e3:.0f}",
            f"{(result.tool_s or 0) * 1e3:.0f}",
            f"{(result.first_s or 0) * 1e3:.0f}",
            ratio(result),
            accuracy(result),
        ]
        for result in results
    ]
    return table(["model", "GMACs", "forward ms", "analysis ms", "first ms", "ratio", "MACs"], rows)


def large(rows: Iterable[dict[str, Any]]) -> str:
    header = ["model", "params", "ops", "bare meta s", "analysis s", "ratio", "plain call", "memory added MB"]
    cells = [
        [
            row["name"],
            f"{row['params'] / 1e9:.1f} G",
            str(row["ops"]),
            f"{row['bare_s']:.2f}",
            f"{row['analysis_s']:.2f}",
            f"{row['ratio']:.2f}",
            f"{row['plain_call_ratio']:.2f}",
            f"{row['added_bytes'] / 1e6:.0f}",
        ]
        for row in rows
    ]
    return table(header, cells)


def growth(rows: Iterable[dict[str, Any]]) -> str:
    cells = [
        [str(row["layers"]), str(row["ops"]), f"{row['seconds'] * 1e3:.0f}", f"{row['seconds_per_op'] * 1e6:.1f}"]
        for row in rows
    ]
    return table(["layers", "ops", "ms", "µs per op"], cells)


def verdicts(items: Iterable[Verdict]) -> str:
    return table(
        ["limit", "measured", "verdict"],
        [[item.limit, item.measured, "PASS" if item.passed else "FAIL"] for item in items],
    )
