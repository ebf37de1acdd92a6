"""The list of a checkpoint's tensors as text: totals, then by folder of names, type and role."""

from __future__ import annotations

from collections.abc import Sequence

from torchgauge.facts import View
from torchgauge.report.escape import visible
from torchgauge.report.headline import fact_lines
from torchgauge.report.layout import Heading, Line, Span, lay_out, plain
from torchgauge.report.options import Options
from torchgauge.report.origin import origin_facts, stored_facts
from torchgauge.report.pickled import pickled
from torchgauge.report.registry import renderer
from torchgauge.report.sections import figure, heading, notes, text_cell
from torchgauge.report.weight_findings import (
    weight_advice,
    weight_failures,
    weight_heat_maps,
    weight_outliers,
    weight_packings,
)
from torchgauge.report.weight_groups import Group, by_dtype, by_folder, by_role, tied
from torchgauge.report.weight_sections import (
    weight_hardest,
    weight_kinds,
    weight_places,
    weight_structures,
    weight_totals,
)
from torchgauge.report.weights_against import against_lines
from torchgauge.units import format_bytes, format_count, format_exact, format_percent

FOLDERS = 30
TIED = 10


@renderer("weights", contents="the tensors as text", scans=(".txt",))
def render_weights(view: View, options: Options) -> str:
    return plain(weight_lines(view, options))


def weight_lines(view: View, options: Options) -> list[Line]:
    pieces = [
        _title(view, options),
        against_lines(view, options),
        weight_failures(view, options),
        weight_totals(view, options),
        weight_kinds(view, options),
        weight_places(view, options),
        weight_hardest(view, options),
        weight_structures(view, options),
        weight_packings(view, options),
        weight_outliers(view, options),
        weight_heat_maps(view, options),
        weight_advice(view, options),
        _groups("Tensors by name", "Folder", by_folder(view), options, limit=FOLDERS),
        _groups("By type", "Type", by_dtype(view), options),
        _groups("By role", "Role", by_role(view), options),
        _tied(view, options),
        pickled(view, options),
        notes(view, options),
    ]
    lines: list[Line] = []
    for piece in pieces:
        if piece:
            lines += [(), *piece] if lines else piece
    return lines


def _title(view: View, options: Options) -> list[Line]:
    params = ("Parameters", format_exact(view.totals.params), "floating-point tensors, known buffers excluded")
    facts = [*origin_facts(view), params, *stored_facts(view)]
    return [(Span(visible(view.capture.target.name), "heading"),), *fact_lines(facts, options.width)]


def _groups(title: str, first: str, groups: Sequence[Group], options: Options, limit: int | None = None) -> list[Line]:
    headings = [Heading(first, is_figure=False)]
    headings += [Heading(name) for name in ("Tensors", "Elements", "Bytes", "share")]
    rows = [
        [
            text_cell(group.name or "(top level)"),
            figure(format_exact(group.tensors)),
            figure(format_count(group.elements)),
            figure(format_bytes(group.nbytes)),
            figure(format_percent(group.share)),
        ]
        for group in groups[:limit]
    ]
    more = len(groups) - len(rows)
    left_out = [(Span(f"and {more:,} more folders", "dim"),)] if more > 0 else []
    return [heading(title), *lay_out(headings, rows, options.width), *left_out] if rows else []


def _tied(view: View, options: Options) -> list[Line]:
    pairs = tied(view)
    if not pairs:
        return []
    headings = [Heading("Tensor", is_figure=False), Heading("shares storage with", is_figure=False)]
    rows = [[text_cell(name), text_cell(original)] for name, original in pairs[:TIED]]
    more = [(Span(f"and {len(pairs) - TIED:,} more", "dim"),)] if len(pairs) > TIED else []
    return [heading("Shared tensors"), *lay_out(headings, rows, options.width), *more]
