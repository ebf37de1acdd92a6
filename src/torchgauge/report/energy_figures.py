"""The energy that a report shows: measured, else estimated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchgauge.facts import Node, View
from torchgauge.facts.figures import ESTIMATED


def is_estimated(view: View) -> bool:
    return view.energy is not None and view.energy.get("origin") == ESTIMATED


def energy_key(view: View) -> str:
    return "estimated_energy_j" if is_estimated(view) else "energy_j"


def whole_joules(view: View) -> float | None:
    """Of one run: measured, or the middle of the estimate."""
    if view.energy is None:
        return None
    joules: float | None = (view.energy.get("estimated_joules") or {}).get("value") if is_estimated(view) else None
    return joules if is_estimated(view) else view.energy.get("joules")


def own_energy(node: Node, rows: Mapping[str, Mapping[str, Any]], key: str) -> float:
    """Without the modules below."""
    below = sum(rows.get(child.path, {}).get(key) or 0.0 for child in node.children)
    return (rows.get(node.path, {}).get(key) or 0.0) - below
