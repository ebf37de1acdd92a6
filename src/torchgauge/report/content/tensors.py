"""The tensors of a checkpoint: by folder of names, type and role, and what changed against another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchgauge.facts import StoredTensor, View
from torchgauge.report.model import Block, Cell, Facts, Section, Table, Text, Topic, figures, more, notes, texts
from torchgauge.report.options import Options
from torchgauge.report.ranking import path_pattern, share_of
from torchgauge.units import format_bytes, format_count, format_exact, format_percent, format_shape, format_value

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Against

FOLDERS, TIED = 30, 10
CHANGED, LISTED = 25, 10


def sections(view: View, options: Options) -> Iterator[Section]:
    against = view.capture.statistics.against if view.capture.statistics else None
    if against is not None:
        yield Section(f"Against {against['path']}", tuple(_against(against)), Topic.CHANGES, name="against")
    if not options.tensors:
        return
    groups = (
        ("Tensors by name", "Folder", by_folder(view)[:FOLDERS], more(len(by_folder(view)) - FOLDERS, "folders")),
        ("By type", "Type", by_dtype(view), ()),
        ("By role", "Role", by_role(view), ()),
    )
    for title, first, shown, left_out in groups:
        rows = tuple(
            (
                Cell(name=group.name or "(top level)"),
                Cell(format_exact(group.tensors)),
                Cell(format_count(group.elements)),
                Cell(format_bytes(group.nbytes)),
                Cell(format_percent(group.share)),
            )
            for group in shown
        )
        if rows:
            table = Table("", (*texts(first), *figures("Tensors", "Elements", "Bytes", "share")), rows, left_out)
            yield Section(title, (table,), Topic.LAYERS)
    pairs = tied(view)
    if pairs:
        shared = tuple((Cell(name=name), Cell(name=original)) for name, original in pairs[:TIED])
        table = Table("", texts("Tensor", "shares storage with"), shared, more(len(pairs) - TIED))
        yield Section("Shared tensors", (table,), Topic.LAYERS)


def _against(found: Against) -> Iterator[Block]:
    entries = {
        "added": [f"{row['name']}  {format_shape(row['shape'])}" for row in found["added"]],
        "removed": [f"{row['name']}  {format_shape(row['shape'])}" for row in found["removed"]],
        "reshaped": [f"{r['name']}  {format_shape(r['was'])} → {format_shape(r['shape'])}" for r in found["reshaped"]],
    }
    counts = [f"{format_exact(len(names))} {state}" for state, names in entries.items()]
    counts.append(f"{format_exact(len(found['retyped']))} retyped")
    yield Facts(
        (
            ("Identical", format_exact(found["identical"]), f"tensors, {format_bytes(found['identical_bytes'])}"),
            ("Changed", format_exact(len(found["changed"])), ", ".join(counts)),
        )
    )
    changed = found["changed"]
    if changed:
        rows = []
        for row in changed[:CHANGED]:
            was = "" if row["dtype"] == row["was_dtype"] else f"{row['was_dtype']} → "
            rows.append(
                (
                    Cell(name=row["name"]),
                    Cell(format_value(row["relative_l2"])),
                    Cell("-" if row["cosine"] is None else f"{row['cosine']:.6f}"),
                    Cell(format_percent(row["changed_share"])),
                    Cell(format_value(row["max_abs_difference"])),
                    Cell(f"{was}{row['dtype']}"),
                )
            )
        headings = (*texts("Tensor"), *figures("relative L2", "cosine", "changed", "largest"), *texts("Type"))
        yield Table("", headings, tuple(rows), more(len(changed) - CHANGED))
    for state, names in entries.items():
        if names:
            yield Text(state.capitalize())
            yield from notes(names[:LISTED])
            yield from (Text(text, is_remark=True) for text in more(len(names) - LISTED))


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that belong together; bytes that several names share count once."""

    name: str
    tensors: int
    elements: int
    nbytes: int
    share: float


def by_folder(view: View) -> list[Group]:
    """Repeated blocks count together: `layers.*.fc`. The largest first."""
    return _grouped(view, lambda tensor: path_pattern(tensor.name.rpartition(".")[0]))


def by_dtype(view: View) -> list[Group]:
    return _grouped(view, lambda tensor: tensor.spec.dtype)


def by_role(view: View) -> list[Group]:
    return _grouped(view, lambda tensor: tensor.role)


def tied(view: View) -> list[tuple[str, str]]:
    """The tensors that share the bytes of another, and whose."""
    tensors = view.capture.stored.tensors if view.capture.stored else ()
    return [(tensor.name, tensor.shared_with) for tensor in tensors if tensor.shared_with is not None]


def _grouped(view: View, key: Callable[[StoredTensor], str]) -> list[Group]:
    groups: dict[str, list[StoredTensor]] = {}
    for tensor in view.capture.stored.tensors if view.capture.stored else ():
        groups.setdefault(key(tensor), []).append(tensor)
    found, whole = [], view.totals.stored_bytes or 0
    for name, members in groups.items():
        unique = [tensor for tensor in members if tensor.shared_with is None]
        nbytes, elements = sum(tensor.nbytes for tensor in unique), sum(tensor.spec.numel for tensor in unique)
        found.append(Group(name, len(members), elements, nbytes, share_of(nbytes, whole)))
    return sorted(found, key=lambda group: -group.nbytes)
