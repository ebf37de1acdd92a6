"""The efficient points of a sweep: those that no other point beats in both time and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TIME, ENERGY = "time_per_sample_s", "energy_per_sample_j"


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """The places of the points that no other one dominates, by the first figure. Less is better in both; of equal
    points the first counts."""
    order = sorted(range(len(points)), key=lambda place: (*points[place], place))
    found: list[int] = []
    least = float("inf")
    for place in order:
        if points[place][1] < least:
            found.append(place)
            least = points[place][1]
    return found


def mark_efficient(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a sweep with `efficient`: whether the point is on the front; None where one of the two figures was
    not measured. An estimate does not count: it follows the time, and would say nothing new."""
    known = [place for place, row in enumerate(rows) if row.get(TIME) and row.get(ENERGY)]
    chosen = {known[place] for place in front([(rows[place][TIME], rows[place][ENERGY]) for place in known])}
    return [{**row, "efficient": place in chosen if place in known else None} for place, row in enumerate(rows)]
