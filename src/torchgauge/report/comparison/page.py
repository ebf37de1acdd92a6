"""A comparison as a separate page: one file that works offline."""

from __future__ import annotations

from dataclasses import asdict

from torchgauge.facts.figures import MODULES, Use, numbers_in
from torchgauge.report.comparison.data import Compared
from torchgauge.report.comparison.sections import (
    circumstance_section,
    figure_section,
    structure_sections,
    weight_sections,
)
from torchgauge.report.model import Table
from torchgauge.report.options import Options
from torchgauge.report.page.assemble import assemble
from torchgauge.report.page.payload import plain, section_data

SECTIONS = ("comparison",)


def render_page(compared: Compared, options: Options) -> str:
    title = " | ".join(side.name or side.kind for side in compared.sides)
    return assemble(title, page_payload(compared), SECTIONS)


def page_payload(compared: Compared) -> dict[str, object]:
    differing = circumstance_section(compared)
    (figures,) = (block for block in figure_section(compared).blocks if isinstance(block, Table))
    payload = {
        "comparison": {
            "sides": [asdict(side) for side in compared.sides],
            "differing": None if differing is None else section_data(differing),
            "figures": [
                {
                    "title": figure.quantity.title,
                    "texts": [figure.quantity.form(reading.value) for reading in figure.readings],
                    "values": [reading.value for reading in figure.readings],
                    "origins": [reading.origin for reading in figure.readings],
                    "intervals": [
                        reading.interval and [figure.quantity.form(end) for end in reading.interval]
                        for reading in figure.readings
                    ],
                    "changes": [found and {"verdict": found.verdict, "text": found.text} for found in figure.changes],
                }
                for figure in compared.figures
            ],
            "notes": list(figures.notes),
        },
        "compared_structure": [section_data(section) for section in structure_sections(compared)],
        "compared_modules": _modules(compared),
        "compared_weights": [section_data(section) for section in weight_sections(compared)] or None,
    }
    return {name: plain(part) for name, part in payload.items()}


def _modules(compared: Compared) -> dict[str, object]:
    """The columns in which some module has a figure; all modules, since the reader may look for an unchanged one."""
    shown = [
        figure
        for figure in numbers_in(Use.MODULES_COMPARED, MODULES)
        if any(value for row in compared.modules[:1] for value in row.values(figure.key))
    ]
    keys = [figure.key for figure in shown]
    # The page itself marks estimates.
    figures = [{"key": f.key, "label": f.short, "form": f.unit.value, "kind": f.origin} for f in shown]
    rows = [{**row.members(), "values": [list(row.values(key)) for key in keys]} for row in compared.modules]
    return {"labels": [side.label for side in compared.sides], "figures": figures, "rows": rows}
