"""Energy of a run: columns for module and op rows, JSON round trip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class EnergyFacts:
    """What a run consumes. `figures` is the document's `energy`; `modules` (by path) and `ops` (by index) are the
    members of their rows: `energy_j` measured, `estimated_energy_j` estimated with its range."""

    figures: Mapping[str, Any]
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ops: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


# The members of a row: measured, or estimated with a range; null where there is neither.
MEMBERS = ("energy_j", "estimated_energy_j", "estimated_energy_low_j", "estimated_energy_high_j")
MEASURED, ESTIMATED, UNAVAILABLE = "measured", "estimated", "unavailable"


def energy_of_module(energy: EnergyFacts | None, path: str) -> dict[str, Any]:
    return _members(energy.modules.get(path, {}) if energy else {})


def energy_of_op(energy: EnergyFacts | None, index: int) -> dict[str, Any]:
    return _members(energy.ops.get(index, {}) if energy else {})


def total_energy(energy: EnergyFacts | None) -> float | None:
    """Joules of one run where a meter measured them; never a sum of parts, never an estimate."""
    return energy.figures["joules"] if energy and energy.figures["origin"] == MEASURED else None


def energy_from_document(document: Mapping[str, Any]) -> EnergyFacts | None:
    figures = document.get("energy")
    if figures is None:
        return None
    return EnergyFacts(
        figures=figures,
        modules={row["path"]: _members(row) for row in document["modules"] if _has_energy(row)},
        ops={row["index"]: _members(row) for row in document["ops"] if _has_energy(row)},
    )


def _has_energy(row: Mapping[str, Any]) -> bool:
    return any(row.get(name) is not None for name in MEMBERS)


def _members(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row.get(name) for name in MEMBERS}
