"""Equal changes at one place of repeated blocks together: `layer3.6–22 ×17`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from torchgauge.report.comparison.rows import FIXED, MEASURED, ModuleRow
from torchgauge.report.comparison.structure import (
    ADDED,
    RECAST,
    REMOVED,
    RENAMED,
    RETYPED,
    ModuleChange,
)
from torchgauge.report.ranking import THE_MODEL, join_paths, path_pattern


@dataclass(frozen=True, slots=True)
class ChangeGroup:
    state: str
    paths: str
    what: str
    count: int
    params: int | None


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Modules with equal figures on all sides; `figures` are those of one of them, of measured ones the mean. They are
    not added up: modules may share parameters."""

    paths: str
    kind: str
    count: int
    depth: int
    figures: dict[str, tuple[float | None, ...]]


def grouped_changes(changes: Iterable[ModuleChange]) -> list[ChangeGroup]:
    groups: dict[Hashable, list[ModuleChange]] = {}
    for change in changes:
        patterns = path_pattern(change.base_path or ""), path_pattern(change.other_path or "")
        types = change.base_type, change.other_type, change.base_params, change.other_params
        groups.setdefault((change.state, patterns, types, change.tensors), []).append(change)
    return [_group(members) for members in groups.values()]


def _group(members: Sequence[ModuleChange]) -> ChangeGroup:
    first = members[0]
    params = [m.other_params if m.other_params is not None else m.base_params for m in members]
    return ChangeGroup(
        state=first.state,
        paths=join_paths([member.path for member in members]) or THE_MODEL,
        what=_what(members),
        count=len(members),
        params=sum(count for count in params if count is not None),
    )


def _what(members: Sequence[ModuleChange]) -> str:
    first = members[0]
    if first.state in (ADDED, REMOVED):
        return first.other_type or first.base_type or ""
    if first.state == RENAMED:
        return f"→ {join_paths([member.other_path or '' for member in members]) or THE_MODEL}"
    if first.state == RETYPED:
        return f"{first.base_type} → {first.other_type}"
    kind = f"{first.base_type}: " if first.base_type else ""
    tensors = "; ".join(f"{t.name} {t.base or 'none'} → {t.other or 'none'}" for t in first.tensors)
    if first.state == RECAST and len({(t.base, t.other) for t in first.tensors}) == 1:
        tensors = f"{first.tensors[0].base} → {first.tensors[0].other}"
    return f"{kind}{tensors}"


def grouped_rows(rows: Iterable[ModuleRow]) -> list[RowGroup]:
    """In the order of the first of each."""
    groups: dict[Hashable, list[ModuleRow]] = {}
    for row in rows:
        fixed = tuple(row.values(key) for key in FIXED)
        places = tuple(None if found is None else path_pattern(found.path) for found in row.rows)
        groups.setdefault((places, row.kind, row.states, fixed), []).append(row)
    return [_row_group(members) for members in groups.values()]


def _row_group(members: Sequence[ModuleRow]) -> RowGroup:
    first = members[0]
    sides = zip(*(row.rows for row in members), strict=True)
    names = [_joined([None if row is None else row.path for row in rows]) for rows in sides]
    known = [name for name in names if name is not None]
    figures = {key: _means([row.values(key) for row in members]) for key in (*FIXED, *MEASURED)}
    return RowGroup(" → ".join(dict.fromkeys(known)), first.kind, len(members), first.depth, figures)


def _joined(paths: Sequence[str | None]) -> str | None:
    known = [path for path in paths if path is not None]
    return (join_paths(known) or THE_MODEL) if known else None


def _means(columns: Sequence[tuple[float | None, ...]]) -> tuple[float | None, ...]:
    return tuple(_mean(values) for values in zip(*columns, strict=True))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    # Not through a division: equal counts stay whole.
    return known[0] if known.count(known[0]) == len(known) else sum(known) / len(known)
