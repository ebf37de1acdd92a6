"""The figures of a module that a picture can be sized and coloured by."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torchgauge.facts import Row, View
from torchgauge.report.options import Options
from torchgauge.report.page.payload import part

STATIC, MEASURED, ESTIMATED = "static", "measured", "estimated"


@dataclass(frozen=True, slots=True)
class Figure:
    """`heading` is short enough for a column; `form` is the name of a form in the page's `tg.format`."""

    key: str
    label: str
    heading: str
    form: str
    kind: str = STATIC


FIGURES = (
    Figure("params", "Parameters", "Params", "count"),
    Figure("param_bytes", "Parameter memory", "Param bytes", "bytes"),
    Figure("macs", "MACs", "MACs", "count"),
    Figure("flops", "FLOPs", "FLOPs", "count"),
    Figure("bytes_moved", "Bytes moved", "Moved", "bytes"),
    Figure("activation_bytes", "Activations", "Activations", "bytes"),
    Figure("time_s", "Time", "Time", "seconds", MEASURED),
    Figure("energy_j", "Energy", "Energy", "joules", MEASURED),
    Figure("estimated_energy_j", "Energy", "Energy", "joules", ESTIMATED),
)


def bytes_moved(row: Row) -> int | None:
    return None if row.bytes_read is None else int(row.bytes_read + row.bytes_written)


def figure_of(row: Row, key: str) -> float | None:
    return bytes_moved(row) if key == "bytes_moved" else row[key]


@part("figures")
def figures(view: View, options: Options) -> list[dict[str, Any]]:
    """Those that some module has: where everything is 0 there is nothing to size."""
    return [asdict(figure) for figure in FIGURES if any(figure_of(row, figure.key) for row in view.modules)]
