"""The tables of a comparison: text cells, computed once for every format that shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchgauge.facts.figures import ESTIMATED
from torchgauge.report.comparison.changes import INCOMPARABLE, INDISTINCT, UNCERTAIN, change
from torchgauge.report.comparison.data import Compared
from torchgauge.report.comparison.groups import ChangeGroup, grouped_changes
from torchgauge.report.comparison.readings import ABOUT, Reading
from torchgauge.report.comparison.structure import STATES
from torchgauge.report.comparison.weights import WeightPair, WeightsCompared
from torchgauge.report.escape import visible
from torchgauge.report.layout import Heading
from torchgauge.units import format_count, format_exact, format_percent, format_shape, format_value

WEIGHTS = 20
CHANGES = 40
_NOTES = {
    INDISTINCT: "no difference: the 95 % intervals of the two overlap (of estimates: their ranges)",
    UNCERTAIN: "?: measured once; how much it varies is not known",
    INCOMPARABLE: "not comparable: one is measured, the other estimated",
}


@dataclass(frozen=True, slots=True)
class Table:
    """Columns before `lead` are on every part of a table that is too wide for one; the others come in `groups`."""

    title: str
    headings: tuple[Heading, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    lead: int = 1
    group: int = 1


def side_table(compared: Compared) -> Table:
    rows = [(side.label, visible(side.name), visible(side.kind), visible(side.created)) for side in compared.sides]
    headings = (_text(""), _text("Target"), _text("Model"), _text("Analysed"))
    return Table("Comparison", headings, tuple(rows), lead=4)


def circumstance_table(compared: Compared) -> Table | None:
    """Only what is not the same: it may explain the rest."""
    differing = compared.differing
    if not differing:
        return None
    rows = [(key, *(visible(side.circumstances[key]) for side in compared.sides)) for key in differing]
    headings = (_text("Not the same"), *(_text(side.label) for side in compared.sides))
    return Table("Circumstances", headings, tuple(rows))


def figure_table(compared: Compared) -> Table:
    headings = [_text("Figure"), Heading(compared.sides[0].label)]
    for side in compared.sides[1:]:
        headings += [Heading(side.label), Heading("change")]
    rows = []
    for figure in compared.figures:
        texts = [figure.quantity.text(reading) for reading in figure.readings]
        cells = [figure.quantity.title, texts[0]]
        for text, found in zip(texts[1:], figure.changes[1:], strict=True):
            cells += [text, "" if found is None else found.text]
        rows.append(tuple(cells))
    return Table("Figures", tuple(headings), tuple(rows), tuple(_figure_notes(compared)), lead=2, group=2)


def _figure_notes(compared: Compared) -> Iterable[str]:
    verdicts = {found.verdict for figure in compared.figures for found in figure.changes if found is not None}
    yield from (note for verdict, note in _NOTES.items() if verdict in verdicts)
    if any(reading.origin == ESTIMATED for figure in compared.figures for reading in figure.readings):
        yield f"{ABOUT.strip()}: estimated, not measured"


def structure_tables(compared: Compared) -> list[Table]:
    base = compared.sides[0].label
    tables = []
    for side, structure in zip(compared.sides[1:], compared.structures, strict=True):
        groups = grouped_changes(structure.changes)
        counts = [sum(change.state == state for change in structure.changes) for state in STATES]
        told = [f"{format_exact(count)} {state}" for state, count in zip(STATES, counts, strict=True) if count]
        summary = ", ".join([*told, f"{format_exact(structure.unchanged)} modules unchanged"])
        more = [f"and {format_exact(len(groups) - CHANGES)} more kinds of change"] if len(groups) > CHANGES else []
        rows = tuple(_change_cells(group) for group in groups[:CHANGES])
        headings = (_text(""), _text("Module"), _text("What"), Heading("Params"))
        title = f"Structure: {side.label} against {base}"
        tables.append(Table(title, headings if rows else (), rows, (*more, summary), lead=4))
    return tables


def _change_cells(group: ChangeGroup) -> tuple[str, str, str, str]:
    times = f" ×{group.count}" if group.count > 1 else ""
    return group.state, visible(group.paths) + times, visible(group.what), format_count(group.params)


def weight_tables(compared: Compared) -> list[Table]:
    tables = []
    for side, found in zip(compared.sides[1:], compared.weights, strict=True):
        if found is not None:
            tables.append(_weight_table((compared.sides[0].label, side.label), found))
            tables += [_drift_table(found)] if found.drift else []
    return tables


def _weight_table(labels: tuple[str, str], found: WeightsCompared) -> Table:
    moved, (base, other) = found.moved, labels
    title = f"Weights: {other} against {base}"
    names = ("norm", f"std {base}", other, f"sparsity {base}", other)
    headings = (_text("Tensor"), *map(Heading, names)) if moved else ()
    equal = len(found.pairs) - len(moved)
    notes = [f"{format_exact(equal)} tensors unchanged, {format_exact(len(moved))} changed"]
    notes += [f"{format_exact(len(found.removed))} removed, {format_exact(len(found.added))} added"]
    notes += [f"shown: the {WEIGHTS} whose norm changed most"] if len(moved) > WEIGHTS else []
    return Table(title, headings, tuple(_weight_cells(pair) for pair in moved[:WEIGHTS]), (", ".join(notes),), lead=6)


def _weight_cells(pair: WeightPair) -> tuple[str, ...]:
    name = pair.name if pair.name == pair.other_name else f"{pair.name} → {pair.other_name}"
    std, sparsity = pair.figures["std"], pair.figures["sparsity"]
    if pair.shape != pair.other_shape:
        name += f" {format_shape(pair.shape)} → {format_shape(pair.other_shape)}"
    elif pair.dtype != pair.other_dtype:
        name += f" {pair.dtype} → {pair.other_dtype}"
    norm = change(*(Reading(value) for value in pair.figures["l2"]))
    return visible(name), norm.text, *map(format_value, std), *map(format_percent, sparsity)


def _drift_table(found: WeightsCompared) -> Table:
    drift = found.drift or {}
    changed: Sequence[dict[str, float | None]] = drift["changed"]
    rows = tuple(
        (
            visible(str(row["name"])),
            format_value(row["relative_l2"]),
            "-" if row["cosine"] is None else f"{row['cosine']:.6f}",
            format_percent(row["changed_share"]),
        )
        for row in changed[:WEIGHTS]
    )
    note = f"{format_exact(drift['identical'])} tensors identical, {format_exact(len(changed))} changed"
    headings = (_text("Tensor"), *map(Heading, ("relative L2", "cosine", "changed"))) if rows else ()
    return Table("Values, tensor by tensor", headings, rows, (note,), lead=4)


def _text(title: str) -> Heading:
    return Heading(title, is_figure=False)
