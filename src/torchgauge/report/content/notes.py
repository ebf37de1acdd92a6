"""What the reader must know of the run before trusting its figures, and what its file would run."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.facts import View
from torchgauge.report.content.ops import unused_modules
from torchgauge.report.model import Block, Cell, Section, Table, Text, Topic, more, notes, texts
from torchgauge.report.options import Options
from torchgauge.units import format_count, format_exact

_NAMED_UNUSED = 6
_LISTED_IMPORTS = 20


def sections(view: View, options: Options) -> Iterator[Section]:
    if found := note_texts(view):
        yield Section("Notes", notes(found, is_warning=True), Topic.NOTES, page_part="overview")
    stored = view.capture.stored
    if stored is None or not stored.imports:
        return
    unusual = [entry for entry in stored.imports if entry.verdict != "expected"]
    what, fate = ("imported", "it was unpickled") if stored.executed else ("would import", "nothing was executed")
    usual = f"{format_exact(len(stored.imports) - len(unusual))} expected names"
    blocks: list[Block] = [Text(f"{usual}, {format_exact(len(unusual))} others; {fate}")]
    if unusual:
        rows = []
        for entry in unusual[:_LISTED_IMPORTS]:
            warns = entry.verdict == "dangerous"
            called = Cell("yes" if entry.called else "no")
            rows.append((Cell(entry.verdict, is_warning=warns), Cell(name=entry.name, is_warning=warns), called))
        left_out = more(len(unusual) - _LISTED_IMPORTS)
        blocks.append(Table("", texts("Verdict", "Name", "Called"), tuple(rows), left_out))
    yield Section(f"What its pickle {what}", tuple(blocks), Topic.NOTES, page_part="method")


def note_texts(view: View) -> list[str]:
    run = view.capture.run
    found = []
    if run.mode == "real":
        found.append(f"The model was run for real: {run.reason or 'it cannot be run on fake tensors'}")
    found += run.warnings
    unused = unused_modules(view)
    if unused:
        names = ", ".join(f"{node.path} ({format_count(node.record.params)} params)" for node in unused[:_NAMED_UNUSED])
        others = f" and {len(unused) - _NAMED_UNUSED} more" if len(unused) > _NAMED_UNUSED else ""
        found.append(f"Never used in this run: {names}{others}")
    return found
