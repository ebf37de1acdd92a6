"""The report of `forecast`: a table of devices and batches, where the time goes, and the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import floor, log10
from typing import Any

from torchgauge.report.escape import visible
from torchgauge.report.layout import Heading, Line, Span, lay_out, plain, wrap
from torchgauge.report.options import PLAIN_WIDTH
from torchgauge.units import format_count, format_percent, format_seconds, format_value

_WORDS = {"fits": "yes", "does not fit": "no", "too close": "close", None: ""}
_MOST_OPS, _MOST_MODULES = 10, 10


def forecast_text(document: Mapping[str, Any], width: int = PLAIN_WIDTH) -> str:
    return plain(forecast_report(document, width)).rstrip("\n")


def forecast_report(document: Mapping[str, Any], width: int) -> list[Line]:
    rows: Sequence[Mapping[str, Any]] = document["forecast"]
    first = rows[0]
    what = f"{visible(first['target'])}: {first['mode']}, {first['execution']}"
    lines: list[Line] = [(Span(what, "heading"),), (), *_table(rows, width)]
    best = document.get("best_batch") or {}
    if best and len({row["batch"] for row in rows}) > 1:
        told = ", ".join(f"{device} {batch}" for device, batch in best.items())
        lines += [(), *wrap(f"Best batch by throughput: {told}", width)]
    lines += [(), *_details(first, width)]
    for note in _notes(rows):
        lines += wrap(visible(note), width, lead=(Span("- "),), style="dim")
    return lines


def _table(rows: Sequence[Mapping[str, Any]], width: int) -> list[Line]:
    has_price = any(row["price_per_hour"] is not None for row in rows)
    headings = [Heading("Device", False)]
    titles = ["Batch", "Fits", "Time", "90 % interval", "Samples/s", "J/sample", "Bound"]
    headings += [Heading(title) for title in [*titles, *(["Per million"] if has_price else [])]]
    cells = []
    for row in rows:
        each = row["per_sample"]
        joules = each["energy_j"]
        values = [
            str(row["batch"] or ""),
            _WORDS.get(row["fit"], ""),
            format_seconds(row["time_s"]),
            f"{format_seconds(row['low_s'])} to {format_seconds(row['high_s'])}",
            format_count(each["throughput_per_s"]),
            "" if joules is None else format_value(joules),
            row["bound"],
        ]
        if has_price:
            money = each["price_per_million"]
            values.append("" if money is None else f"{money:,.2f}")
        cells.append([(Span(row["device"]),), *((Span(value),) for value in values)])
    return lay_out(headings, cells, width)


def _details(row: Mapping[str, Any], width: int) -> list[Line]:
    """Of the first forecast: the ops and modules that take the most time."""
    total = row["time_s"] or 1.0
    title = f"Where the time goes on {row['title']}" + (f", batch {row['batch']}" if row["batch"] else "")
    groups: dict[tuple[str, str, str], list[float]] = {}
    for op in row["ops"]:
        kept = groups.setdefault((op["op"], op["source"], op["bound"]), [0.0, 0.0, 0.0])
        kept[0] += op["time_s"]
        kept[1] += 1
        kept[2] += (op["roof_share"] or 0.0) * op["device_s"]
    headings = [Heading("Op", False)]
    headings += [Heading(name) for name in ("Calls", "Time", "Share", "Of the roof", "Bound", "Source")]
    cells = []
    for (name, source, bound), (seconds, count, roof) in sorted(groups.items(), key=lambda item: -item[1][0])[
        :_MOST_OPS
    ]:
        device = sum(
            op["device_s"] for op in row["ops"] if (op["op"], op["source"], op["bound"]) == (name, source, bound)
        )
        values = [
            f"{count:.0f}", format_seconds(seconds), format_percent(seconds / total),
            format_percent(roof / device) if device else "", bound, source,
        ]  # fmt: skip
        cells.append([(Span(visible(name)),), *((Span(value),) for value in values)])
    lines: list[Line] = [(Span(title, "heading"),), *lay_out(headings, cells, width), ()]
    largest = [module for module in row["modules"] if module["depth"] == 1]
    if largest:
        largest = sorted(largest, key=lambda module: -module["time_s"])[:_MOST_MODULES]
        heads = [Heading("Module", False), Heading("Time"), Heading("Share"), Heading("Energy")]
        shown = [
            [
                (Span(visible(module["path"])),),
                (Span(format_seconds(module["time_s"])),),
                (Span(format_percent(module["time_s"] / total)),),
                (Span("" if module["energy_j"] is None else f"{format_value(module['energy_j'])} J"),),
            ]
            for module in largest
        ]
        lines += [*lay_out(heads, shown, width), ()]
    return lines


def _notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = []
    for device in dict.fromkeys(row["device"] for row in rows):
        row = next(one for one in rows if one["device"] == device)
        parts = [
            f"{format_percent(share)} {source}" for source, share in sorted(row["sources"].items(), key=lambda s: -s[1])
        ]
        notes.append(f"{row['title']}: {', '.join(parts)}; host: {row['host_source']}")
        notes += row["warnings"]
    return notes


# Colours that stay apart for colour-blind readers (Okabe and Ito).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def forecast_svg(document: Mapping[str, Any]) -> str:
    """Two charts side by side: throughput against batch, time against energy; a line per device, bars for the 90 %
    interval. Both axes are logarithmic."""
    rows = document["forecast"]
    devices = list(dict.fromkeys(row["device"] for row in rows))
    colour = {device: _COLOURS[number % len(_COLOURS)] for number, device in enumerate(devices)}
    left = [
        (row["device"], row["batch"] or 1, row["per_sample"]["throughput_per_s"],
         (row["batch"] or 1) / row["high_s"], (row["batch"] or 1) / row["low_s"])
        for row in rows if row["time_s"]
    ]  # fmt: skip
    right = [
        (row["device"], row["time_s"], row["energy_j"], row["energy_low_j"], row["energy_high_j"])
        for row in rows if row["energy_j"]
    ]  # fmt: skip
    parts = [_chart(left, 0, "batch", "samples per second", colour)]
    if right:
        parts.append(_chart(right, 460, "time of a run, s", "energy of a run, J", colour))
    keys = "".join(
        f'<text x="{70 + 120 * number}" y="375" fill="{colour[device]}">● {escape(device)}</text>'
        for number, device in enumerate(devices)
    )
    title = escape(f"{rows[0]['target']}: {rows[0]['mode']}, {rows[0]['execution']}")
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 390" font-family="sans-serif" font-size="12">'
        f'<rect width="920" height="390" fill="white"/><text x="20" y="22" font-size="14">{title}</text>'
        f"{''.join(parts)}{keys}</svg>\n"
    )


def _chart(points: Sequence[tuple[Any, ...]], left: int, across: str, upward: str, colour: Mapping[str, str]) -> str:
    """Points are (device, x, y, low, high)."""
    x0, x1, y0, y1 = left + 70, left + 430, 310, 50
    xs = [point[1] for point in points]
    ys = [value for point in points for value in point[2:]]
    x_low, x_high = log10(min(xs)) - 0.05, log10(max(xs)) + 0.05
    y_low, y_high = log10(min(ys)) - 0.05, log10(max(ys)) + 0.05

    def x_of(value: float) -> float:
        return round(x0 + (log10(value) - x_low) / (x_high - x_low) * (x1 - x0), 1)

    def y_of(value: float) -> float:
        return round(y0 - (log10(value) - y_low) / (y_high - y_low) * (y0 - y1), 1)

    parts = [f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="#444"/>']
    for tick in _ticks(x_low, x_high):
        parts.append(f'<text x="{x_of(tick)}" y="{y0 + 18}" text-anchor="middle">{format_value(tick)}</text>')
    for tick in _ticks(y_low, y_high):
        y = y_of(tick)
        parts.append(f'<path d="M{x0} {y}H{x1}" stroke="#ddd"/>')
        parts.append(f'<text x="{x0 - 8}" y="{y + 4}" text-anchor="end">{format_value(tick)}</text>')
    parts.append(f'<text x="{(x0 + x1) / 2}" y="{y0 + 38}" text-anchor="middle">{escape(across)}</text>')
    parts.append(f'<text x="{x0}" y="{y1 - 10}">{escape(upward)}</text>')
    for device, shade in colour.items():
        own = sorted(point for point in points if point[0] == device)
        line = " ".join(f"{x_of(point[1])},{y_of(point[2])}" for point in own)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{shade}" stroke-width="1.5"/>')
        for _, x, y, low, high in own:
            parts.append(f'<path d="M{x_of(x)} {y_of(low)}V{y_of(high)}" stroke="{shade}" stroke-opacity="0.5"/>')
            parts.append(f'<circle cx="{x_of(x)}" cy="{y_of(y)}" r="3.5" fill="{shade}"/>')
    return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between where there are few."""
    decades = range(floor(low), floor(high) + 1)
    steps = (1,) if high - low > 3 else (1, 2, 5)
    return [step * 10.0**power for power in decades for step in steps if low <= log10(step * 10.0**power) <= high]
