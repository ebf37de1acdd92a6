"""What the pickles of a file would run: the dangerous first."""

from __future__ import annotations

from torchgauge.facts import PickleImport, View
from torchgauge.report.layout import Heading, Line, Span, lay_out, wrap
from torchgauge.report.options import Options
from torchgauge.report.sections import heading, text_cell
from torchgauge.units import format_exact

LISTED = 20


def pickled(view: View, options: Options) -> list[Line]:
    stored = view.capture.stored
    if stored is None or not stored.imports:
        return []
    told = [entry for entry in stored.imports if entry.verdict != "expected"]
    usual = len(stored.imports) - len(told)
    what, fate = ("imported", "it was unpickled") if stored.executed else ("would import", "nothing was executed")
    summary = f"{format_exact(usual)} expected names, {format_exact(len(told))} others; {fate}"
    lines = [heading(f"What its pickle {what}"), *wrap(summary, options.width)]
    if not told:
        return lines
    headings = [Heading(title, is_figure=False) for title in ("Verdict", "Name", "Called")]
    more = [(Span(f"and {len(told) - LISTED:,} more", "dim"),)] if len(told) > LISTED else []
    return [*lines, *lay_out(headings, [_row(entry) for entry in told[:LISTED]], options.width), *more]


def _row(entry: PickleImport) -> list[Line]:
    style = "warning" if entry.verdict == "dangerous" else ""
    return [text_cell(entry.verdict, style), text_cell(entry.name, style), text_cell("yes" if entry.called else "no")]
