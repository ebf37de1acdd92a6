"""Plots of characters, drawn from zero: a bar twice as long is twice as much."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = " ▁▂▃▄▅▆▇█"


def bar(value: float, top: float, width: int) -> str:
    """`width` characters for `top`; what is more than nothing shows."""
    if value <= 0 or top <= 0:
        return ""
    eighths = min(max(round(value / top * width * 8), 1), width * 8)
    return _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def spark(values: Sequence[float], top: float, width: int) -> str:
    """A line of columns as high as their values; neighbours share a column where there are more than `width`."""
    return "".join(_LEVELS[_level(value, top)] for value in narrowed(values, width))


def narrowed(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values, each the largest of its neighbours: a peak must not hide."""
    if len(values) <= width:
        return list(values)
    cuts = [index * len(values) // width for index in range(width + 1)]
    return [max(values[start:stop]) for start, stop in pairwise(cuts)]


def _level(value: float, top: float) -> int:
    if value <= 0 or top <= 0:
        return 0
    return min(max(round(value / top * 8), 1), 8)
