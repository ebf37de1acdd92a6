"""The data of the page: a registry of parts, each a name and what it gives; rows are stored as columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torchgauge.facts import Row, View
from torchgauge.facts.figures import FIGURES, MODULES, OPS, Figure, Unit, Use, numbers_in, shown_in
from torchgauge.facts.rows import bytes_moved
from torchgauge.registry import Registry
from torchgauge.report.bars import course_rows, scatter
from torchgauge.report.content import sections_of
from torchgauge.report.model import Course, Listing, Scatter, Section, Table
from torchgauge.report.options import Options
from torchgauge.units import visible

# Plain JSON data, or None where there is nothing to show.
Part = Callable[[View, Options], object]

# The data of each part of the page.
PARTS: Registry[str, Part] = Registry("part of the page")
part = PARTS.register
_AS_IT_IS = frozenset({int, bool, type(None)})
_PLOT_WIDTH = 60  # characters


def build_payload(view: View, options: Options) -> dict[str, Any]:
    return {name: plain(make(view, options)) for name, make in PARTS.items()}


def plain(value: object) -> Any:
    """The value as JSON for a page: texts are escaped where they would not show as themselves, infinities are null."""
    if isinstance(value, str):
        return _shown(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_shown(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        # Most of a large page are columns of whole numbers: they are looked at once, not one by one.
        return list(value) if _AS_IT_IS.issuperset(map(type, value)) else [plain(item) for item in value]
    return _shown(str(value))


def _shown(text: str) -> str:
    """Lines stay lines (code is shown too); every other character that would not show as itself is an escape."""
    return "\n".join(map(visible, text.split("\n"))) if "\n" in text else visible(text)


def section_data(section: Section, *, has_plots: bool = True) -> dict[str, object]:
    """A section as the page draws it, title and blocks. `has_plots`: also plots drawn in characters, which the page has
    no other form of."""
    blocks: list[dict[str, object]] = []
    for block in section.blocks:
        if isinstance(block, Course | Scatter) and not has_plots:
            continue
        match block:
            case Table():
                headings = [{"title": heading.title, "is_figure": heading.is_figure} for heading in block.headings]
                rows = [[cell.plain for cell in row] for row in block.rows]
                blocks.append({"kind": "table", "headings": headings, "rows": rows, "notes": list(block.notes)})
            case Listing():
                items = [
                    {"text": item.name + item.text, "facts": list(item.facts), "code": item.code}
                    for item in block.items
                ]
                flags = {"is_warning": block.is_warning, "is_remark": block.is_remark}
                blocks.append({"kind": "listing", "items": items, "is_numbered": block.mark == "1.", **flags})
            case Course():
                blocks.append({"kind": "facts", "rows": course_rows(block, _PLOT_WIDTH)})
            case Scatter():
                blocks.append({"kind": "code", "text": "\n".join(scatter(block, _PLOT_WIDTH))})
            case _:
                blocks.append({"kind": type(block).__name__.lower(), **asdict(block)})
    return {"title": section.title, "blocks": blocks}


def shortened(value: object, digits: int) -> object:
    """A page with thousands of rows must stay small, and a picture needs few significant digits."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def columns(length: int, values: Mapping[str, Sequence[object]]) -> dict[str, object]:
    """The columns that hold anything."""
    filled = {key: column for key, column in values.items() if any(value is not None for value in column)}
    return {"length": length, "columns": {key: encode(column) for key, column in filled.items()}}


def encode(values: Sequence[object]) -> Any:
    """The values as they are, as {"same": value}, or as {"table": distinct values, "index": their places}."""
    places: dict[object, int] = {}
    index = [places.setdefault(value, len(places)) for value in values]
    if len(places) == 1:
        return {"same": values[0]}
    if len(places) * 2 > len(values):
        return list(values)
    return {"table": list(places), "index": index}


# Units whose format in the page's `tg.format` has another name.
_FORMS = {Unit.NUMBER: "count", Unit.RATE: "count"}


def value_of(row: Row, figure: Figure) -> object:
    return row[figure.key] if figure.in_document else bytes_moved(row)


def described(figure: Figure) -> dict[str, object]:
    """`heading` is short enough for a column; `form` is the name of a format in `tg.format`; work is unknown for an op
    without a formula."""
    return {
        "key": figure.key,
        "label": figure.title,
        "heading": figure.short,
        "form": _FORMS.get(figure.unit, figure.unit.value),
        "kind": figure.origin,
        "is_work": figure.unit is Unit.COUNT and figure.of_call is not None,
        # The keys of its low and high end.
        "range": [end.key for end in FIGURES if end.range_of == figure.key],
    }


@part("figures")
def figures(view: View, options: Options) -> list[dict[str, object]]:
    """The figures that pictures can be sized and coloured by; one that is 0 everywhere is left out."""
    pictured = numbers_in(Use.PICTURES, MODULES)
    return [described(figure) for figure in pictured if any(value_of(row, figure) for row in view.modules)]


@part("module_figures")
def module_figures(view: View, options: Options) -> list[dict[str, object]]:
    """The other columns of the module table."""
    pictured = numbers_in(Use.PICTURES, MODULES)
    return [described(figure) for figure in shown_in(Use.MODULE_PAGE, MODULES) if figure not in pictured]


@part("op_figures")
def op_figures(view: View, options: Options) -> list[dict[str, object]]:
    """The columns of the op table."""
    return [described(figure) for figure in shown_in(Use.OP_PAGE, OPS)]


@part("more")
def more(view: View, options: Options) -> list[dict[str, object]] | None:
    """The sections of the report that no other part of the page shows."""
    return [section_data(section) for section in sections_of(view, options) if not section.page_part] or None
