"""What changed against another checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchgauge.facts import View
from torchgauge.report.escape import visible
from torchgauge.report.headline import fact_lines
from torchgauge.report.layout import Heading, Line, Span, lay_out
from torchgauge.report.options import Options
from torchgauge.report.origin import Fact
from torchgauge.report.sections import figure, heading, text_cell
from torchgauge.units import format_bytes, format_exact, format_percent, format_shape, format_value

CHANGED, LISTED = 25, 10


def against_lines(view: View, options: Options) -> list[Line]:
    found = _against(view)
    if found is None:
        return []
    lines = [heading(f"Against {visible(found['path'])}"), *fact_lines(_facts(found), options.width)]
    lines += _changed(found["changed"], options)
    for state in ("added", "removed"):
        lines += _listed(state, [f"{row['name']}  {format_shape(row['shape'])}" for row in found[state]])
    moved = [f"{row['name']}  {format_shape(row['was'])} → {format_shape(row['shape'])}" for row in found["reshaped"]]
    return lines + _listed("reshaped", moved)


def _against(view: View) -> Mapping[str, Any] | None:
    statistics = view.capture.statistics
    return None if statistics is None else statistics.against


def _facts(found: Mapping[str, Any]) -> list[Fact]:
    counts = [f"{format_exact(len(found[key]))} {key}" for key in ("added", "removed", "reshaped", "retyped")]
    return [
        ("Identical", format_exact(found["identical"]), f"tensors, {format_bytes(found['identical_bytes'])}"),
        ("Changed", format_exact(len(found["changed"])), ", ".join(counts)),
    ]


def _changed(rows: Sequence[Mapping[str, Any]], options: Options) -> list[Line]:
    if not rows:
        return []
    names = ("relative L2", "cosine", "changed", "largest")
    headings = [Heading("Tensor", is_figure=False), *map(Heading, names), Heading("Type", is_figure=False)]
    cells = [
        [
            text_cell(row["name"]),
            figure(format_value(row["relative_l2"])),
            figure("-" if row["cosine"] is None else f"{row['cosine']:.6f}"),
            figure(format_percent(row["changed_share"])),
            figure(format_value(row["max_abs_difference"])),
            text_cell(_types(row)),
        ]
        for row in rows[:CHANGED]
    ]
    return [(), *lay_out(headings, cells, options.width), *_more(len(rows) - CHANGED)]


def _types(row: Mapping[str, Any]) -> str:
    return row["dtype"] if row["dtype"] == row["was_dtype"] else f"{row['was_dtype']} → {row['dtype']}"


def _listed(state: str, texts: Sequence[str]) -> list[Line]:
    if not texts:
        return []
    shown: list[Line] = [(Span(f"  {visible(text)}"),) for text in texts[:LISTED]]
    return [(), (Span(f"{state.capitalize()}"),), *shown, *_more(len(texts) - LISTED)]


def _more(count: int) -> list[Line]:
    return [(Span(f"and {format_exact(count)} more", "dim"),)] if count > 0 else []
