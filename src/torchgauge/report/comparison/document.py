"""A comparison as JSON, CSV, DataFrame and page; rendered in any format, and saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchgauge.errors import UsageError
from torchgauge.facts import Row
from torchgauge.facts.figures import MODULES, Use, numbers_in
from torchgauge.report.comparison.data import Compared
from torchgauge.report.comparison.sections import (
    circumstance_section,
    comparison_sections,
    figure_section,
    finding_texts,
    structure_sections,
    weight_sections,
)
from torchgauge.report.comparison.structure import FIGURES
from torchgauge.report.formats.json import document_pieces
from torchgauge.report.model import Table
from torchgauge.report.options import Options
from torchgauge.report.registry import COMPARISON, OTHERS, find_format
from torchgauge.report.saving import write_whole
from torchgauge.report.table_rows import frame, rows_to_csv

if TYPE_CHECKING:
    import pandas as pd


KIND = "comparison"
SCHEMA_VERSION = 1


def comparison_document(compared: Compared) -> dict[str, Any]:
    """Plain JSON: the sides in their order, and for each figure the values, intervals and changes of all sides."""
    totals = [
        {
            "key": figure.quantity.key,
            "title": figure.quantity.title,
            "values": [reading.value for reading in figure.readings],
            "origins": [reading.origin for reading in figure.readings],
            "intervals": [reading.interval and list(reading.interval) for reading in figure.readings],
            "changes": [None if found is None else asdict(found) for found in figure.changes],
        }
        for figure in compared.figures
    ]
    modules = [
        {"path": row.path, **row.members(), **{key: list(row.values(key)) for key in FIGURES}}
        for row in compared.modules
    ]
    weights = [
        found
        and {
            "pairs": [asdict(pair) | {"shift": pair.shift, "equal": pair.is_equal} for pair in found.pairs],
            "added": list(found.added),
            "removed": list(found.removed),
            "drift": None if found.drift is None else dict(found.drift),
        }
        for found in compared.weights
    ]
    structure = [
        {
            "unchanged": found.unchanged,
            "unrelated": found.is_unrelated,
            "changes": [asdict(change) for change in found.changes],
        }
        for found in compared.structures
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "document": KIND,
        "sides": [asdict(side) for side in compared.sides],
        "differing": compared.differing,
        "totals": totals,
        "structure": structure,
        "modules": modules,
        "weights": weights,
    }


def render_json(compared: Compared, options: Options) -> str:
    return "".join(document_pieces(comparison_document(compared).items()))


def render_csv(compared: Compared, options: Options) -> str:
    """One line per module, all figures of all sides."""
    return rows_to_csv(list(flat_modules(compared)))


def flat_modules(compared: Compared) -> Iterator[Row]:
    labels = [side.label for side in compared.sides]
    for row in compared.modules:
        flat = Row(path=row.path, depth=row.depth)
        for index, label in enumerate(labels):
            found = row.rows[index]
            flat |= {f"path_{label}": found and found.path, f"type_{label}": found and found.type}
            flat[f"state_{label}"] = row.states[index]
        for key in FIGURES:
            flat |= {f"{key}_{label}": value for label, value in zip(labels, row.values(key), strict=True)}
        yield flat


def render_page(compared: Compared, options: Options) -> str:
    """One file that works offline."""
    from torchgauge.report.page.assemble import assemble

    title = " | ".join(side.name or side.kind for side in compared.sides)
    return assemble(title, page_payload(compared), ("comparison",))


def page_payload(compared: Compared) -> dict[str, object]:
    from torchgauge.report.page.payload import plain, section_data

    differing = circumstance_section(compared)
    (figures,) = (block for block in figure_section(compared).blocks if isinstance(block, Table))
    payload = {
        "comparison": {
            "sides": [asdict(side) for side in compared.sides],
            "findings": finding_texts(compared),
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


def render(compared: Compared, format: str = "text", options: Options | None = None) -> str:
    formats = {entry.name: entry for entry in OTHERS[COMPARISON]}
    if format not in formats:
        raise UsageError(f"there is no format '{format}'; choose from: {', '.join(sorted(formats))}")
    options = options or Options()
    if formats[format].is_prose:
        return str(formats[format].render(comparison_sections(compared, options), options.width))
    return str(formats[format].render(compared, options))


def save(compared: Compared, path: str | Path, options: Options | None = None) -> None:
    write_whole(Path(path), render(compared, find_format(path, COMPARISON).name, options))


def to_dataframe(compared: Compared) -> pd.DataFrame:
    """One row per module, all figures of all sides."""
    return frame(flat_modules(compared))
