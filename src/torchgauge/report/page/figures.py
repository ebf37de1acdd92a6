"""The figures of modules and ops that the page shows, each with how it is written."""

from __future__ import annotations

from typing import Any

from torchgauge.facts import Row, View
from torchgauge.facts.figures import FIGURES, MODULES, OPS, Figure, Unit, Use, numbers_in, shown_in
from torchgauge.facts.rows import bytes_moved
from torchgauge.report.options import Options
from torchgauge.report.page.payload import part

# Units whose format in the page's `tg.format` has another name.
_FORMS = {Unit.NUMBER: "count", Unit.RATE: "count"}


def value_of(row: Row, figure: Figure) -> Any:
    return row[figure.key] if figure.in_document else bytes_moved(row)


def described(figure: Figure) -> dict[str, Any]:
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
def figures(view: View, options: Options) -> list[dict[str, Any]]:
    """Those that pictures can be sized and coloured by: where everything is 0 there is nothing to size."""
    pictured = numbers_in(Use.PICTURES, MODULES)
    return [described(figure) for figure in pictured if any(value_of(row, figure) for row in view.modules)]


@part("module_figures")
def module_figures(view: View, options: Options) -> list[dict[str, Any]]:
    """The other columns of the module table."""
    pictured = numbers_in(Use.PICTURES, MODULES)
    return [described(figure) for figure in shown_in(Use.MODULE_PAGE, MODULES) if figure not in pictured]


@part("op_figures")
def op_figures(view: View, options: Options) -> list[dict[str, Any]]:
    """The columns of the op table."""
    return [described(figure) for figure in shown_in(Use.OP_PAGE, OPS)]
