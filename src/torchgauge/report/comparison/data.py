"""Analyses side by side: the first is what the others are compared with; figures, structure and weights.

Statistics can show that two tensors differ, not that they are equal; `drift`, from the files themselves, shows both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING

from torchgauge.checkpoint.tensor_names import common_names
from torchgauge.errors import UsageError
from torchgauge.facts import ModuleRecord, ParamRecord, Row, View, enclosing_paths
from torchgauge.facts.measurements import measurements_of
from torchgauge.report.comparison.matching import Matcher, Matching, name_in_model
from torchgauge.report.comparison.readings import (
    NO_READING,
    OPTIONAL,
    QUANTITIES,
    Change,
    Quantity,
    Reading,
    change,
    predicted_quantities,
)
from torchgauge.report.comparison.structure import ModuleRow, Structure, compare_structure, module_rows
from torchgauge.report.content.findings import Finding, findings
from torchgauge.report.content.summary import model_kind, param_types
from torchgauge.units import format_shape

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Against


def with_common_names(base: View, others: Sequence[View]) -> list[View]:
    """All sides; the names and the tree of those without code lose the wrappers that other sides lack."""
    base, others = _with_modules(base), [_with_modules(view) for view in others]
    spelled = [common_names(_shapes(base), _shapes(view)) for view in others]
    # The first side has one spelling for all: that of the side with which it has most in common.
    ours, _ = max(spelled, key=lambda pair: len(pair[0].keys() & pair[1].keys()))
    first = _renamed(base, ours)
    return [first, *(_renamed(view, common_names(_shapes(first), _shapes(view))[1]) for view in others)]


def _shapes(view: View) -> dict[str, tuple[int, ...]]:
    return {param.name: param.spec.shape for param in view.capture.params}


def _renamed(view: View, spelling: Mapping[str, str]) -> View:
    """The view with its tensors under the names of the spelling; a view with code keeps its names."""
    names = {stored: name for name, stored in spelling.items()}
    if view.capture.has_code or all(stored == name for stored, name in names.items()):
        return view
    params = tuple(replace(param, name=names[param.name], aliases=()) for param in view.capture.params)
    leads = {stored.removesuffix(name) for stored, name in names.items() if stored.endswith(name)}
    stored = view.capture.stored
    if stored is not None and len(leads) == 1:
        lead = leads.pop().rstrip(".")
        tensors = []
        for tensor in stored.tensors:
            if tensor.module is not None:
                module = "" if tensor.module == lead else tensor.module.removeprefix(f"{lead}.")
                tensor = replace(tensor, module=module)
            tensors.append(tensor)
        stored = replace(stored, tensors=tuple(tensors))
    return _from_names(View(replace(view.capture, params=params, stored=stored)))


def _with_modules(view: View) -> View:
    """The view itself, if the modules of its tensors are known."""
    known = {record.path for record in view.capture.modules}
    return view if all(param.module in known for param in view.capture.params) else _from_names(view)


def _from_names(view: View) -> View:
    """The view with the modules that the names of its tensors imply."""
    capture = view.capture
    held: defaultdict[str, list[ParamRecord]] = defaultdict(list)
    for param in capture.params:
        # From the root down, so that a module comes after the one it is in.
        for path in enclosing_paths(param.module):
            held[path].append(param)
    modules = [next(record for record in capture.modules if record.path == "")]
    for path, params in held.items():
        if path:
            own = [param.spec for param in params if not param.is_buffer]
            elements, nbytes = sum(spec.numel for spec in own), sum(spec.nbytes for spec in own)
            modules.append(ModuleRecord(path, "", params=elements, param_bytes=nbytes))
    return View(replace(capture, modules=tuple(modules)))


@dataclass(frozen=True, slots=True)
class Side:
    """`circumstances` are other conditions that figures may depend on, as texts."""

    label: str
    name: str
    kind: str
    created: str
    circumstances: Mapping[str, str]
    findings: tuple[Finding, ...] = ()


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


def compare_views(views: Sequence[View], drifts: Sequence[Against | None] = ()) -> Compared:
    """`drifts` are the differences of the files of each side but the first, None where unknown."""
    if len(views) < 2:
        raise UsageError("a comparison needs two analyses or more")
    views = with_common_names(views[0], views[1:])
    base, *others = views
    matchings = [Matcher(base, other).match() for other in others]
    structures = [compare_structure(base, other, found) for other, found in zip(others, matchings, strict=True)]
    known = list(drifts) or [None] * len(others)
    weights = [
        compare_weights(base, other, found, drift) for other, found, drift in zip(others, matchings, known, strict=True)
    ]
    sides = tuple(
        Side(
            label=label(index),
            name=view.capture.target.name,
            kind=model_kind(view),
            created=view.capture.created,
            circumstances=_circumstances(view),
            findings=tuple(findings(view)),
        )
        for index, view in enumerate(views)
    )
    return Compared(
        sides=sides,
        figures=tuple(_figures(views)),
        structures=tuple(structures),
        modules=tuple(module_rows(views, matchings, structures)),
        weights=tuple(weights),
    )


def label(index: int) -> str:
    """`A`, `B`, …, `Z`, `A2`."""
    round_, letter = divmod(index, 26)
    return chr(ord("A") + letter) + (str(round_ + 1) if round_ else "")


def _circumstances(view: View) -> dict[str, str]:
    capture = view.capture
    inputs = ", ".join(f"{i.name} {format_shape(i.spec.shape)} {i.spec.dtype}" for i in capture.inputs)
    measured = measurements_of(view)
    threads = (measured.get("threads") or {}).get("intra_op")
    return {
        "Inputs": inputs or "none",
        "Parameters in": param_types(view) or "none",
        "Mode": "not run" if not capture.has_code else "training" if capture.run.train else "inference",
        "Device": str(measured.get("device", capture.run.device)),
        "Machine": capture.environment.cpu,
        "Threads": "not measured" if threads is None else str(threads),
        "torch": capture.environment.torch,
    }


def _figures(views: Sequence[View]) -> Iterator[Figure]:
    """The quantities that a side has; those in `OPTIONAL` only where they say more than their neighbour."""
    found: dict[str, Figure] = {}
    for quantity in (*QUANTITIES, *predicted_quantities(views)):
        readings = tuple(quantity.read(view) for view in views)
        if any(reading.value is not None for reading in readings):
            changes = (None, *(change(readings[0], reading) for reading in readings[1:]))
            found[quantity.key] = Figure(quantity, readings, changes)
    for key, figure in found.items():
        if (like := found.get(OPTIONAL.get(key, ""))) is not None:
            pairs = zip(like.readings, figure.readings, strict=True)
            if all(mine in (theirs, NO_READING) for theirs, mine in pairs):
                continue
        if any(reading.value for reading in figure.readings):
            yield figure


WEIGHT_FIGURES = ("mean", "std", "abs_max", "l2", "sparsity", "entropy_bits")


@dataclass(frozen=True, slots=True)
class WeightPair:
    """A tensor of both sides; `figures` are (base, other), `shift` the relative change of its norm."""

    name: str
    other_name: str
    shape: tuple[int, ...]
    other_shape: tuple[int, ...]
    dtype: str
    other_dtype: str
    figures: Mapping[str, tuple[float | None, float | None]]

    @property
    def shift(self) -> float | None:
        base, other = self.figures.get("l2", (None, None))
        if base is None or other is None or not base:
            return None
        shift = other / base - 1
        return shift if isfinite(shift) else None

    @property
    def is_equal(self) -> bool:
        """Judged by the statistics."""
        same_form = (self.shape, self.dtype) == (self.other_shape, self.other_dtype)
        return same_form and all(base == other for base, other in self.figures.values())


@dataclass(frozen=True, slots=True)
class WeightsCompared:
    pairs: tuple[WeightPair, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    drift: Against | None = None

    @property
    def moved(self) -> list[WeightPair]:
        """The pairs that differ, the largest change first; a change from zero has no relative size and comes last."""
        differing = [pair for pair in self.pairs if not pair.is_equal]
        return sorted(differing, key=lambda pair: (pair.shift is None, -abs(pair.shift or 0.0)))


def compare_weights(
    base: View, other: View, matching: Matching, drift: Against | None = None
) -> WeightsCompared | None:
    """None where not both sides have tensors whose values were read."""
    mine, theirs = _read_rows(base), _read_rows(other)
    if not mine or not theirs:
        return None
    # Match names without wrappers first; then a tensor goes where its module went.
    ours, others = common_names(*({name: tuple(row.shape) for name, row in side.items()} for side in (mine, theirs)))
    spelled = {stored: others[name] for name, stored in ours.items() if name in others}
    in_model = {name_in_model(row): row.name for row in theirs.values()}
    taken = set(spelled.values())
    pairs = []
    for name, row in mine.items():
        path, _, leaf = (there := name_in_model(row)).rpartition(".")
        if (partner := matching.partner.get(path)) is not None:
            there = f"{partner.path}.{leaf}" if partner.path else leaf
        found = spelled.get(name) or in_model.get(there)
        if found is None or (name not in spelled and found in taken):
            continue
        match = theirs[found]
        figures = {key: (row.get(key), match.get(key)) for key in WEIGHT_FIGURES}
        forms = tuple(row.shape), tuple(match.shape), row.dtype, match.dtype
        pairs.append(WeightPair(name, match.name, *forms, figures))
    kept, matched = {pair.name for pair in pairs}, {pair.other_name for pair in pairs}
    removed = tuple(name for name in mine if name not in kept)
    return WeightsCompared(tuple(pairs), removed, tuple(name for name in theirs if name not in matched), drift)


def _read_rows(view: View) -> dict[str, Row]:
    return {row.name: row for row in view.weights if row.role != "optimizer" and row.get("l2") is not None}
