"""Sweeps and thread scaling in the text report: tables with a bar for each point."""

from __future__ import annotations

from collections.abc import Sequence

from torchgauge.facts import View
from torchgauge.report.bars import bar
from torchgauge.report.escape import visible
from torchgauge.report.headline import fact_lines
from torchgauge.report.layout import GAP, MIN_TEXT_WIDTH, Heading, Line, Span, lay_out, line_width, wrap
from torchgauge.report.measurements import measured_member, measured_rows
from torchgauge.report.options import Options
from torchgauge.report.origin import Fact
from torchgauge.report.sections import figure, heading, text_cell
from torchgauge.report.sweep_points import SweepPoint, sweep_points
from torchgauge.units import format_bytes, format_count, format_exact, format_percent, format_seconds, format_value

# A larger batch is to raise the throughput; whatever else is varied is to be fast.
_BY_THROUGHPUT = ("batch", "threads")


def sweeps(view: View, options: Options) -> list[Line]:
    lines: list[Line] = []
    for key, points in sweep_points(view).items():
        lines += [(), *_sweep(key, points, options)] if lines else _sweep(key, points, options)
    return lines


def _sweep(key: str, points: Sequence[SweepPoint], options: Options) -> list[Line]:
    by_throughput = key in _BY_THROUGHPUT
    drawn = [point.throughput_per_s if by_throughput else point.median_s for point in points]
    headings = [Heading(title) for title in (visible(key), "Median", "±", "Samples/s", "Peak")]
    rows = [
        [
            text_cell(str(point.value)),
            figure(format_seconds(point.median_s)),
            figure(format_percent(point.precision)),
            figure(format_count(point.throughput_per_s)),
            figure(format_bytes(point.peak_bytes)),
        ]
        for point in points
    ]
    what = "throughput" if by_throughput else "time"
    table = with_bars(headings, rows, drawn, what, options)
    failed = [point for point in points if point.failure]
    notes = [
        line
        for point in failed
        for line in wrap(
            visible(f"{key} {point.value}: {point.failure}"), options.width, lead=(Span("- "),), style="warning"
        )
    ]
    return [heading(f"Sweep over {visible(key)}"), *table, *notes]


def with_bars(
    headings: Sequence[Heading],
    rows: Sequence[Sequence[Line]],
    values: Sequence[float | None],
    what: str,
    options: Options,
) -> list[Line]:
    """The table with a column of bars in the width that is left."""
    table = lay_out(headings, rows, options.width)
    room = options.width - line_width(table[0]) - len(GAP)
    if room < MIN_TEXT_WIDTH:
        return table
    top = max((value for value in values if value), default=0.0)
    bars = [Span(what, "head"), *(Span(bar(value or 0.0, top, min(room, 40)), "figure") for value in values)]
    return [(*line, Span(GAP), drawn) for line, drawn in zip(table, bars, strict=True)]


def thread_scaling(view: View, options: Options) -> list[Line]:
    threads, scaling = measured_member(view, "threads"), measured_rows(view, "scaling", within="threads")
    if not scaling:
        return []
    headings = [Heading(title) for title in ("Threads", "Median", "Speed-up", "Efficiency")]
    rows = [
        [
            figure(format_exact(row["threads"])),
            figure(format_seconds(row["median_s"])),
            figure(format_value(row["speedup"])),
            figure(format_percent(row["efficiency"])),
        ]
        for row in scaling
    ]
    lines = with_bars(headings, rows, [row["speedup"] for row in scaling], "speed-up", options)
    facts: list[Fact] = []
    if threads.get("utilisation") is not None:
        facts.append(("Busy", format_percent(threads["utilisation"]), "of the threads' time in the undisturbed runs"))
    if serial := {kind: share for kind, share in (threads.get("serial_share") or {}).items() if share is not None}:
        text = ", ".join(f"{visible(kind)} {format_percent(share)}" for kind, share in serial.items())
        facts.append(("Serial", "", f"{text}: the share that does not run in parallel, by Amdahl's law"))
    return [heading("Thread scaling"), *lines, *(fact_lines(facts, options.width) if facts else [])]
