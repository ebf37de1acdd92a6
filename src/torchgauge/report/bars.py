"""Plots of characters, drawn from zero: a bar twice as long is twice as much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from torchgauge.report.model import Course, Scatter

V = TypeVar("V")

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = " ▁▂▃▄▅▆▇█"
_ROWS, _MAX_COLUMNS, _MIN_COLUMNS = 10, 60, 20
MARKED, _UNMARKED = "●", "·"


def bar(value: float, top: float, width: int) -> str:
    """`width` characters for `top`; any positive value shows."""
    if value <= 0 or top <= 0:
        return ""
    eighths = min(max(round(value / top * width * 8), 1), width * 8)
    return _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def spark(values: Sequence[float], top: float, width: int) -> str:
    """A line of columns as high as their values; neighbours share a column where there are more than `width`."""
    levels = (
        min(max(round(value / top * 8), 1), 8) if value > 0 and top > 0 else 0 for value in narrow(values, width, max)
    )
    return "".join(_LEVELS[level] for level in levels)


def course_rows(course: Course, width: int) -> list[tuple[str, str, str]]:
    """Label, line of columns and remark of each line of a course."""
    return [(label, spark(values, course.top or max(values), width), text) for label, values, text in course.lines]


def narrow(values: Sequence[V], width: int, pick: Callable[[Sequence[V]], V]) -> list[V]:
    """At most `width` values: `pick` chooses the one that stands for its neighbours."""
    if len(values) <= width:
        return list(values)
    cuts = [index * len(values) // width for index in range(width + 1)]
    return [pick(values[start:stop]) for start, stop in pairwise(cuts)]


def scatter(plot: Scatter, width: int) -> list[str]:
    """Points from zero, the first axis to the right, the second upwards; a marked point hides one that is not."""
    columns = max(_MIN_COLUMNS, min(_MAX_COLUMNS, width - 12))
    right, upper = max(point.x for point in plot.points), max(point.y for point in plot.points)
    canvas = [[" "] * columns for _ in range(_ROWS)]
    for point in sorted(plot.points, key=lambda point: point.is_marked):
        column = min(int(point.x / right * columns), columns - 1) if right else 0
        height = min(int(point.y / upper * _ROWS), _ROWS - 1) if upper else 0
        canvas[_ROWS - 1 - height][column] = MARKED if point.is_marked else _UNMARKED
    labels = [plot.y_end, *[""] * (_ROWS - 1)]
    margin = max(map(len, labels))
    lines = [f"{label:>{margin}} │{''.join(cells).rstrip()}" for label, cells in zip(labels, canvas, strict=True)]
    end = plot.x_end
    return [*lines, f"{'0':>{margin}} └{'─' * columns}", " " * (margin + 2 + columns - len(end)) + end]
