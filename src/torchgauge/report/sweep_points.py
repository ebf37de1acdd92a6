"""The points of a sweep, from the rows of `measurements.sweep`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchgauge.facts import View
from torchgauge.report.measurements import measured_rows


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One value of what is varied; the figures are None where the run failed, and `failure` says why."""

    key: str
    value: Any
    median_s: float | None
    precision: float | None
    throughput_per_s: float | None
    peak_bytes: int | None
    failure: str | None


def sweep_points(view: View) -> dict[str, list[SweepPoint]]:
    """By what is varied, in the order they were measured."""
    points: dict[str, list[SweepPoint]] = {}
    for row in measured_rows(view, "sweep"):
        points.setdefault(row["key"], []).append(_point(row))
    return points


def _point(row: Mapping[str, Any]) -> SweepPoint:
    latency = row.get("latency") or {}
    memory = row.get("memory") or {}
    return SweepPoint(
        key=row["key"],
        value=row["value"],
        median_s=latency.get("median_s"),
        precision=interval_share(latency),
        throughput_per_s=latency.get("throughput_per_s"),
        peak_bytes=memory.get("allocated_peak_bytes"),
        failure=row.get("failure"),
    )


def interval_share(latency: Mapping[str, Any]) -> float | None:
    """Half of the median's interval, of the median; None for a single run."""
    median, interval = latency.get("median_s"), latency.get("ci95_s")
    return (interval[1] - interval[0]) / 2 / median if median and interval and latency.get("runs", 0) > 1 else None
