"""The contract's `energy`: every key is there, null where it is not known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchgauge.facts.energy import UNAVAILABLE
from torchgauge.facts.figures import ESTIMATED, MEASURED

__all__ = ["BOUNDARY", "ESTIMATED", "KEYS", "MEASURED", "UNAVAILABLE", "blank", "unavailable"]

BOUNDARY = "device, not host"

KEYS = (
    "origin", "reason", "boundary", "meters", "joules", "ci95_j", "net_joules", "watts_mean", "watts_peak",
    "idle_watts", "flops_per_joule", "joules_per_sample", "joules_per_token", "estimated_joules",
    "estimated_watts_mean", "estimated_flops_per_joule", "trials", "iterations", "window_s",
    "power_limit_watts", "notes", "thermal", "attribution", "carbon",
)  # fmt: skip


def blank(origin: str, **known: Any) -> dict[str, Any]:
    """The figures of one run; joules are those of one inference (of one step in training)."""
    unknown = known.keys() - set(KEYS)
    if unknown:
        raise KeyError(f"no figures of energy: {', '.join(sorted(unknown))}")
    empty: dict[str, Any] = dict.fromkeys(KEYS)
    return empty | {"origin": origin, "boundary": BOUNDARY, "meters": [], "notes": []} | known


def unavailable(reason: str, meters: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """No reading: the reason, and the reason of each meter. An estimate may still take its place."""
    return blank(UNAVAILABLE, reason=reason, meters=[dict(row) for row in meters])
