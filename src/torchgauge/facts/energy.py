"""Energy of a run: columns for module and op rows, JSON round trip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchgauge.facts.figures import ENERGY, MEASURED, MODULES, OPS, Members, members_known

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Document


@dataclass(frozen=True, slots=True)
class EnergyFacts:
    """What a run consumes. `figures` is the document's `energy`; `modules` (by path) and `ops` (by index) are the
    members of their rows: `energy_j` measured, `estimated_energy_j` estimated with its range."""

    figures: Members
    modules: Mapping[str, Members] = field(default_factory=dict)
    ops: Mapping[int, Members] = field(default_factory=dict)


UNAVAILABLE = "unavailable"


def total_energy(energy: EnergyFacts | None) -> float | None:
    """Joules of one run where a meter measured them; never a sum of parts, never an estimate."""
    return energy.figures["joules"] if energy and energy.figures["origin"] == MEASURED else None


def energy_from_document(document: Document) -> EnergyFacts | None:
    figures = document.get("energy")
    if figures is None:
        return None
    return EnergyFacts(
        figures=figures,
        modules={row["path"]: found for row in document["modules"] if (found := members_known(row, MODULES, ENERGY))},
        ops={row["index"]: found for row in document["ops"] if (found := members_known(row, OPS, ENERGY))},
    )
