"""Pictures of predictions as SVG: labels, verdicts in colours, and charts with logarithmic axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import NamedTuple

from torchgauge.report.escape import html_text

# The size of a chart, titles and ticks included.
WIDTH, HEIGHT = 460, 300
# Colours that stay apart for colour-blind readers (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "currentColor")
VERDICT_COLOURS = {"fits": "#3ca951", "too close": "#efb118", "does not fit": "#ff725c"}
_STYLE = "text{font:12px sans-serif;fill:currentColor}.title{font-weight:bold}.grid{stroke:currentColor;opacity:.15}"

Axis = tuple[str, Callable[[float], str]]  # its title, and how its values are written


class Mark(NamedTuple):
    """`low` and `high` are the ends of its interval, drawn as a bar."""

    x: float
    y: float
    title: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Marks of one colour; a series with a name is in the legend."""

    colour: str
    marks: Sequence[Mark]
    name: str = ""
    is_line: bool = True
    is_filled: bool = True


_LETTER = 7.0  # width of a letter of a label


def svg_picture(width: float, height: float, pieces: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
        f"<style>{_STYLE}</style>{''.join(pieces)}</svg>\n"
    )


def svg_label(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{html_text(text)}</text>'


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with more between them where these are few: an axis has two ticks at least."""
    ticks: list[float] = []
    for steps in ((1,), (1, 2, 5), [half / 2 for half in range(2, 20)], [tenth / 10 for tenth in range(10, 100)]):
        if len(ticks) < (4 if steps == (1, 2, 5) else 2):
            all_ticks = (step * 10.0**power for power in range(floor(low), floor(high) + 1) for step in steps)
            ticks = [tick for tick in all_ticks if low <= log10(tick) <= high]
    return ticks


def log_chart(
    left: float,
    top: float,
    across: Axis,
    upward: Axis,
    series: Sequence[Series],
    roof: Sequence[tuple[float, float]] = (),
) -> str:
    """Both axes are logarithmic; `roof` is a line above the marks. Empty where there are no marks."""
    marks = [mark for one in series for mark in one.marks]
    if not marks:
        return ""
    x0, x1, y0, y1 = left + 80, left + WIDTH - 20, top + HEIGHT - 30, top + 30
    xs = [log10(x) for x in (*(mark.x for mark in marks), *(x for x, _ in roof))]
    ends = (value for mark in marks for value in (mark.y, mark.low, mark.high) if value)
    ys = [log10(y) for y in (*ends, *(y for _, y in roof))]
    x_low, x_high, y_low, y_high = min(xs) - 0.1, max(xs) + 0.1, min(ys) - 0.1, max(ys) + 0.1

    def x_of(value: float) -> float:
        return x0 + (log10(value) - x_low) / (x_high - x_low) * (x1 - x0)

    def y_of(value: float) -> float:
        return y0 - (log10(value) - y_low) / (y_high - y_low) * (y0 - y1)

    pieces = [f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="currentColor"/>', svg_label(x0, y1 - 10, upward[0])]
    pieces.append(svg_label((x0 + x1) / 2, y0 + 36, across[0], "middle"))
    labelled = x0 - 80.0  # where the last label ends; the next one must not overlap it
    for tick in log_ticks(x_low, x_high):
        label = across[1](tick)
        half = _LETTER * len(label) / 2
        if x_of(tick) - half > labelled + _LETTER:
            pieces.append(svg_label(x_of(tick), y0 + 18, label, "middle"))
            labelled = x_of(tick) + half
    for tick in log_ticks(y_low, y_high):
        pieces.append(f'<path d="M{x0} {y_of(tick):.1f}H{x1}" class="grid"/>')
        pieces.append(svg_label(x0 - 6, y_of(tick) + 4, upward[1](tick), "end"))
    if roof:
        line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in roof)
        pieces.append(f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="2"/>')
    for number, one in enumerate(series, start=1):
        style = f'fill="{one.colour if one.is_filled else "none"}" stroke="{one.colour}"'
        if one.name:
            pieces.append(f'<circle cx="{x1 - 110}" cy="{y0 - 14 * number}" r="4" {style}/>')
            pieces.append(svg_label(x1 - 100, y0 - 14 * number + 4, one.name))
        if one.is_line:
            line = " ".join(f"{x_of(mark.x):.1f},{y_of(mark.y):.1f}" for mark in one.marks)
            pieces.append(f'<polyline points="{line}" fill="none" stroke="{one.colour}" stroke-width="1.5"/>')
        for mark in one.marks:
            x, y = f"{x_of(mark.x):.1f}", f"{y_of(mark.y):.1f}"
            if mark.low and mark.high:
                bar = f"M{x} {y_of(mark.low):.1f}V{y_of(mark.high):.1f}"
                pieces.append(f'<path d="{bar}" stroke="{one.colour}" stroke-opacity="0.5"/>')
            title = f"<title>{html_text(mark.title)}</title>" if mark.title else ""
            pieces.append(f'<circle cx="{x}" cy="{y}" r="4" {style}>{title}</circle>')
    return "".join(pieces)
