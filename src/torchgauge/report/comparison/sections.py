"""The sections of a comparison, which every format renders."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from statistics import mean

from torchgauge.errors import UsageError
from torchgauge.facts.figures import ESTIMATED
from torchgauge.report.comparison.data import Compared
from torchgauge.report.comparison.readings import INCOMPARABLE, INDISTINCT, UNCERTAIN, Reading, change
from torchgauge.report.comparison.structure import (
    ADDED,
    FIGURES,
    FIXED,
    MEASURED,
    RECAST,
    REMOVED,
    RENAMED,
    RETYPED,
    STATES,
    ModuleChange,
    ModuleRow,
)
from torchgauge.report.content.modules import PAGE_LINES
from torchgauge.report.content.weights import drift_cells
from torchgauge.report.model import Cell, Cells, Section, Text, Topic, figures, more, names, table, texts
from torchgauge.report.options import ABOUT, COLUMNS, DEFAULT_COLUMNS, Options
from torchgauge.report.ranking import THE_MODEL, join_paths, path_pattern
from torchgauge.units import format_count, format_exact, format_percent, format_shape, format_value


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Modules with equal figures on all sides; `figures` are those of one of them, of measured ones the mean. They are
    not added up: modules may share parameters."""

    paths: str
    kind: str
    count: int
    depth: int
    figures: dict[str, tuple[float | None, ...]]


def change_rows(changes: Iterable[ModuleChange]) -> list[Cells]:
    """Equal changes at one place of repeated blocks share a row."""
    groups: dict[Hashable, list[ModuleChange]] = {}
    for one in changes:
        patterns = path_pattern(one.base_path or ""), path_pattern(one.other_path or "")
        types = one.base_type, one.other_type, one.base_params, one.other_params
        groups.setdefault((one.state, patterns, types, one.tensors), []).append(one)
    rows: list[Cells] = []
    for members in groups.values():
        first = members[0]
        if first.state in (ADDED, REMOVED):
            what = first.other_type or first.base_type or ""
        elif first.state == RENAMED:
            what = f"→ {join_paths([member.other_path or '' for member in members]) or THE_MODEL}"
        elif first.state == RETYPED:
            what = f"{first.base_type} → {first.other_type}"
        else:
            what = "; ".join(f"{t.name} {t.base or 'none'} → {t.other or 'none'}" for t in first.tensors)
            if first.state == RECAST and len({(t.base, t.other) for t in first.tensors}) == 1:
                what = f"{first.tensors[0].base} → {first.tensors[0].other}"
            what = f"{first.base_type}: {what}" if first.base_type else what
        params = [m.other_params if m.other_params is not None else m.base_params for m in members]
        total = sum(count for count in params if count is not None)
        paths = join_paths([member.path for member in members]) or THE_MODEL
        rows.append((first.state, Cell(name=paths, times=len(members)), what, format_count(total)))
    return rows


def grouped_rows(rows: Iterable[ModuleRow]) -> list[RowGroup]:
    """Groups are in the order of their first members."""
    groups: dict[Hashable, list[ModuleRow]] = {}
    for row in rows:
        fixed = tuple(row.values(key) for key in FIXED)
        places = tuple(None if found is None else path_pattern(found.path) for found in row.rows)
        groups.setdefault((places, row.kind, row.states, fixed), []).append(row)
    found = []
    for members in groups.values():
        names = []
        for side in zip(*(row.rows for row in members), strict=True):
            if paths := [row.path for row in side if row is not None]:
                names.append(join_paths(paths) or THE_MODEL)
        # The mean of equal counts stays a whole number.
        figures = {
            key: tuple(
                None if None in values else mean(value for value in values if value is not None)
                for values in zip(*[row.values(key) for row in members], strict=True)
            )
            for key in (*FIXED, *MEASURED)
        }
        first = members[0]
        found.append(RowGroup(" → ".join(dict.fromkeys(names)), first.kind, len(members), first.depth, figures))
    return found


MAX_WEIGHTS, MAX_CHANGES = 20, 40
COMPARED = ("params", "macs")
EQUAL = "×n: n modules with the same figures, shown once with those of one"
NO_INTERVAL = (
    "Times and energies of modules have no interval: compare their differences with the interval of the whole run"
)
_NOTES = {
    INDISTINCT: "no difference: the 95 % intervals of the two overlap (of estimates: their ranges)",
    UNCERTAIN: "?: measured once; its variation is unknown",
    INCOMPARABLE: "not comparable: one is measured, the other estimated",
}


def comparison_sections(compared: Compared, options: Options) -> list[Section]:
    sides = [(side.label, side.name, side.kind, side.created) for side in compared.sides]
    alarms = tuple(Text(text, is_alarm=True) for text in finding_texts(compared))
    found = [
        Section("", alarms, Topic.FINDINGS) if alarms else None,
        Section("Comparison", (table(texts("", "Target", "Model", "Analysed"), sides),)),
        circumstance_section(compared),
        figure_section(compared),
        *structure_sections(compared),
        module_section(compared, options),
        *weight_sections(compared),
    ]
    return [section for section in found if section is not None]


def finding_texts(compared: Compared) -> list[str]:
    return [f"{side.label}: {found.text}" for side in compared.sides for found in side.findings]


def circumstance_section(compared: Compared) -> Section | None:
    """Only the conditions that differ: they may explain the rest."""
    rows = [(key, *(side.circumstances[key] for side in compared.sides)) for key in compared.differing]
    headings = texts("Condition", *(side.label for side in compared.sides))
    return Section("Conditions that differ", (table(headings, rows, group=1),)) if rows else None


def figure_section(compared: Compared) -> Section:
    labels = [side.label for side in compared.sides]
    changed = [title for label in labels[1:] for title in (label, "change")]
    rows = []
    for figure in compared.figures:
        readings = [figure.quantity.text(reading) for reading in figure.readings]
        cells = [figure.quantity.title, readings[0]]
        for reading, found in zip(readings[1:], figure.changes[1:], strict=True):
            cells += [reading, "" if found is None else found.text]
        rows.append(cells)
    verdicts = {found.verdict for figure in compared.figures for found in figure.changes if found is not None}
    notes = [note for verdict, note in _NOTES.items() if verdict in verdicts]
    if any(reading.origin == ESTIMATED for figure in compared.figures for reading in figure.readings):
        notes.append(f"{ABOUT.strip()}: estimated, not measured")
    headings = (*texts("Figure"), *figures(labels[0], *changed))
    return Section("Figures", (table(headings, rows, notes, lead=2, group=2),))


def structure_sections(compared: Compared) -> Iterator[Section]:
    base = compared.sides[0].label
    for side, structure in zip(compared.sides[1:], compared.structures, strict=True):
        if structure.is_unrelated:
            text = Text(f"{side.label} and {base} have nothing in common: no layer of one is found in the other.")
            yield Section(f"Structure: {side.label} against {base}", (text,))
            continue
        groups = change_rows(structure.changes)
        counts = {state: sum(change.state == state for change in structure.changes) for state in STATES}
        counted = [f"{format_exact(count)} {state}" for state, count in counts.items() if count]
        summary = ", ".join([*counted, f"{format_exact(structure.unchanged)} modules unchanged"])
        headings = (*texts("", "Module", "What"), *figures("Params")) if groups else ()
        notes = (*more(len(groups) - MAX_CHANGES, "kinds of change"), summary)
        yield Section(f"Structure: {side.label} against {base}", (table(headings, groups[:MAX_CHANGES], notes),))


def check_columns(options: Options) -> None:
    """Refuse columns that cannot be compared, before the work begins."""
    chosen = () if options.columns == DEFAULT_COLUMNS else options.columns
    for key in (*chosen, *([options.sort] if options.sort else [])):
        if key not in FIGURES:
            raise UsageError(f"'{key}' cannot be compared; choose from: {', '.join(FIGURES)}")


def module_section(compared: Compared, options: Options) -> Section | None:
    """The modules whose figures differ, side by side."""
    check_columns(options)
    if all(structure.is_unrelated for structure in compared.structures):
        return None
    columns = options.columns
    if columns == DEFAULT_COLUMNS:
        timed = sum(value is not None for value in compared.modules[0].values("time_s")) > 1
        known = [key for key in COMPARED if any(v is not None for v in compared.modules[0].values(key))]
        columns = (*known, *(("time_s",) if timed else ()))
    places = grouped_rows(row for row in compared.modules if row.differs_in(columns) and not row.is_below_absent)
    # As deep as fits a page, and at least one level.
    depths = sorted({group.depth for group in places})
    fitting = [depth for depth in depths if sum(group.depth <= depth for group in places) <= PAGE_LINES]
    deepest = options.depth if options.depth is not None else (fitting or depths[:1] or [0])[-1]
    shown = [group for group in places if group.depth <= deepest]
    if not shown:
        return None
    if (key := options.sort) is not None:
        # Sorted by the difference; a side without the module counts as 0.
        values = {id(group): [value or 0 for value in group.figures[key]] for group in shown}
        shown.sort(key=lambda group: max(values[id(group)]) - min(values[id(group)]), reverse=True)
    labels = [side.label for side in compared.sides]
    is_pair = len(labels) == 2
    headings = list(texts("Module"))
    for key in columns:
        headings += figures(f"{COLUMNS[key].title} {labels[0]}", *labels[1:], *(("change",) if is_pair else ()))
    notes = []
    if len(shown) < len(places):
        notes.append(f"shown: {format_exact(len(shown))} of {format_exact(len(places))} places; --depth shows more")
    notes += [EQUAL] if any(group.count > 1 for group in shown) else []
    notes += [NO_INTERVAL] if set(columns) & set(MEASURED) else []
    rows = [_module_cells(group, columns) for group in shown]
    return Section("Modules that differ", (table(tuple(headings), rows, notes, group=len(labels) + is_pair),))


def _module_cells(group: RowGroup, columns: tuple[str, ...]) -> list[Cell | str]:
    # The root is named by its type, as in the module tree.
    is_root = group.paths == THE_MODEL
    cells: list[Cell | str] = [
        Cell(name=group.kind) if is_root else Cell(f" {group.kind}", group.paths, times=group.count)
    ]
    for key in columns:
        values = group.figures[key]
        cells += [COLUMNS[key].form(value) for value in values]
        if len(values) == 2:
            base, other = values
            text = change(Reading(base), Reading(other)).text
            if (base is None) != (other is None):
                # A module that one side lacks is new or gone.
                text = "new" if base is None else "gone"
            cells.append(text)
    return cells


def weight_sections(compared: Compared) -> Iterator[Section]:
    base = compared.sides[0].label
    for side, found in zip(compared.sides[1:], compared.weights, strict=True):
        if found is None or not (found.pairs or found.drift):
            continue
        moved, rows = found.moved, list[Cells]()
        for pair in moved[:MAX_WEIGHTS]:
            there = "" if pair.name == pair.other_name else f" → {pair.other_name}"
            if pair.shape != pair.other_shape:
                there += f" {format_shape(pair.shape)} → {format_shape(pair.other_shape)}"
            elif pair.dtype != pair.other_dtype:
                there += f" {pair.dtype} → {pair.other_dtype}"
            norm = change(*(Reading(value) for value in pair.figures["l2"]))
            cells = [norm.text, *map(format_value, pair.figures["std"]), *map(format_percent, pair.figures["sparsity"])]
            rows.append((Cell(there, pair.name), *cells))
        titles = figures("norm", f"std {base}", side.label, f"sparsity {base}", side.label)
        notes = [f"{format_exact(len(found.pairs) - len(moved))} tensors unchanged, {format_exact(len(moved))} changed"]
        notes += [f"{format_exact(len(found.removed))} removed, {format_exact(len(found.added))} added"]
        notes += [f"shown: the {MAX_WEIGHTS} whose norm changed most"] if len(moved) > MAX_WEIGHTS else []
        pairs = table((*names("Tensor"), *titles) if rows else (), rows, (", ".join(notes),))
        yield Section(f"Weights: {side.label} against {base}", (pairs,))
        if drift := found.drift:
            drifted = [drift_cells(row) for row in drift["changed"][:MAX_WEIGHTS]]
            counts = format_exact(drift["identical"]), format_exact(len(drift["changed"]))
            note = f"{counts[0]} tensors identical, {counts[1]} changed"
            headings = (*names("Tensor"), *figures("relative L2", "cosine", "changed")) if drifted else ()
            yield Section("Values, tensor by tensor", (table(headings, drifted, (note,)),))
