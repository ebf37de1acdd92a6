"""What runs measured, with the types of the JSON document: a misspelt key is an error of mypy."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torchgauge.facts import View

if TYPE_CHECKING:
    from torchgauge.facts.document_types import EnergyFigures, Measurements


def measurements_of(view: View) -> Measurements:
    """Empty where nothing was measured."""
    return cast("Measurements", view.measurements or {})


def energy_of(view: View) -> EnergyFigures | None:
    return cast("EnergyFigures | None", view.energy)
