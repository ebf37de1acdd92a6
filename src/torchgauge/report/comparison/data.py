"""Analyses side by side: the first is what the others are compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchgauge.errors import UsageError
from torchgauge.facts import View
from torchgauge.report.comparison.changes import Change, change
from torchgauge.report.comparison.matching import match_modules
from torchgauge.report.comparison.name_tree import with_common_names
from torchgauge.report.comparison.readings import OPTIONAL, QUANTITIES, UNKNOWN, Quantity, Reading, predicted_quantities
from torchgauge.report.comparison.rows import ModuleRow, module_rows
from torchgauge.report.comparison.structure import Structure, compare_structure
from torchgauge.report.comparison.weights import WeightsCompared, compare_weights
from torchgauge.report.content.summary import model_kind
from torchgauge.report.measurements import measured_member
from torchgauge.units import format_shape


@dataclass(frozen=True, slots=True)
class Side:
    """`circumstances` are what figures may depend on besides the model, as texts."""

    label: str
    name: str
    kind: str
    created: str
    circumstances: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity on all sides; the change of the first is None."""

    quantity: Quantity
    readings: tuple[Reading, ...]
    changes: tuple[Change | None, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """`structures` and `weights` have one entry for each side but the first."""

    sides: tuple[Side, ...]
    figures: tuple[Figure, ...]
    structures: tuple[Structure, ...]
    modules: tuple[ModuleRow, ...]
    weights: tuple[WeightsCompared | None, ...]

    @property
    def differing(self) -> list[str]:
        """The circumstances that are not the same on all sides."""
        first, *others = (side.circumstances for side in self.sides)
        return [key for key in first if any(other[key] != first[key] for other in others)]


def compare_views(views: Sequence[View], drifts: Sequence[Mapping[str, Any] | None] = ()) -> Compared:
    """`drifts` are what the files of each side but the first tell against those of the first, None where unknown."""
    if len(views) < 2:
        raise UsageError("a comparison needs two analyses or more")
    views = with_common_names(views[0], views[1:])
    base, *others = views
    matchings = [match_modules(base, other) for other in others]
    structures = [compare_structure(base, other, found) for other, found in zip(others, matchings, strict=True)]
    known = list(drifts) or [None] * len(others)
    weights = [
        compare_weights(base, other, found, drift) for other, found, drift in zip(others, matchings, known, strict=True)
    ]
    return Compared(
        sides=tuple(_side(index, view) for index, view in enumerate(views)),
        figures=tuple(_figures(views)),
        structures=tuple(structures),
        modules=tuple(module_rows(views, matchings, structures)),
        weights=tuple(weights),
    )


def label(index: int) -> str:
    """`A`, `B`, …, `Z`, `A2`."""
    round_, letter = divmod(index, 26)
    return chr(ord("A") + letter) + (str(round_ + 1) if round_ else "")


def _side(index: int, view: View) -> Side:
    capture = view.capture
    return Side(label(index), capture.target.name, model_kind(view), capture.created, _circumstances(view))


def _circumstances(view: View) -> dict[str, str]:
    capture = view.capture
    inputs = ", ".join(f"{i.name} {format_shape(i.spec.shape)} {i.spec.dtype}" for i in capture.inputs)
    elements: Counter[str] = Counter()
    for param in capture.params:
        elements[param.spec.dtype] += 0 if param.is_buffer else param.spec.numel
    threads = measured_member(view, "threads").get("intra_op")
    measured: Mapping[str, Any] = view.measurements or {}
    return {
        "Inputs": inputs or "none",
        "Parameters in": ", ".join(dtype for dtype, count in elements.most_common() if count) or "none",
        "Mode": "not run" if not capture.has_code else "training" if capture.run.train else "inference",
        "Device": str(measured.get("device", capture.run.device)),
        "Machine": capture.environment.cpu,
        "Threads": "not measured" if threads is None else str(threads),
        "torch": capture.environment.torch,
    }


def _figures(views: Sequence[View]) -> list[Figure]:
    found = {}
    for quantity in (*QUANTITIES, *predicted_quantities(views)):
        readings = tuple(quantity.read(view) for view in views)
        if any(reading.value is not None for reading in readings):
            changes = (None, *(change(readings[0], reading) for reading in readings[1:]))
            found[quantity.key] = Figure(quantity, readings, changes)
    told = [found[key] for key in found if not _repeats(found, key)]
    return [figure for figure in told if any(reading.value for reading in figure.readings)]


def _repeats(found: Mapping[str, Figure], key: str) -> bool:
    like = OPTIONAL.get(key)
    if like is None or like not in found:
        return False
    pairs = zip(found[like].readings, found[key].readings, strict=True)
    return all(mine in (theirs, UNKNOWN) for theirs, mine in pairs)
