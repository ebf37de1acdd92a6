"""The documents of `fit`, `forecast` and `llm`: JSON on its own, or sections and a picture that every format renders.

A document is recognised by its key ("fit", "forecast", "llm"). `CONTENTS` says which functions make the sections and
the picture of each; the formats themselves are in `registry.OTHERS`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from torchgauge.report.layout import PLAIN_WIDTH, Line
from torchgauge.report.model import Section
from torchgauge.report.registry import FIT, FORECAST, LLM, find_format, imported
from torchgauge.report.saving import write_whole

Document = Mapping[str, Any]


class Content(NamedTuple):
    """Functions of a document, "module:function" below `report`: its sections, its picture (SVG) and the rows of a CSV
    file; empty where a document has none. `title` is the heading of the page, after the target's name."""

    title: str
    sections: str
    picture: str = ""
    rows: str = ""


CONTENTS: dict[str, Content] = {
    FIT: Content("memory", "fit:fit_sections", "fit:fit_svg"),
    LLM: Content("language model", "llm:llm_sections", "llm:llm_svg", "llm:flat_rows"),
    FORECAST: Content("time and energy", "forecast:forecast_sections", "forecast:forecast_svg", "forecast:flat_rows"),
}


def kind_of(document: Document) -> str:
    return next(kind for kind in CONTENTS if kind in document)


def sections_of(document: Document) -> list[Section]:
    found: list[Section] = imported(CONTENTS[kind_of(document)].sections)(document)
    return found


def render_document(document: Document, path: str | Path) -> str:
    """In the format that the name of the file asks for."""
    format = find_format(path, kind_of(document))
    if format.is_prose:
        return str(imported(format.home)(sections_of(document), PLAIN_WIDTH))
    return str(imported(format.home)(document))


def save_document(document: Document, path: str | Path) -> None:
    write_whole(Path(path), render_document(document, path))


def document_lines(document: Document, width: int) -> list[Line]:
    """The report of the terminal."""
    from torchgauge.report.formats.text import sections_lines

    return sections_lines(sections_of(document), width)


def document_text(document: Document) -> str:
    return render_document(document, "report.txt").rstrip("\n")


def render_json(document: Document) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def render_csv(document: Document) -> str:
    rows: list[dict[str, Any]] = imported(CONTENTS[kind_of(document)].rows)(document)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)  # None is an empty cell
    return out.getvalue()


def render_picture(document: Document) -> str:
    return str(imported(CONTENTS[kind_of(document)].picture)(document))


def render_page(document: Document) -> str:
    """One file that works offline: the picture and the sections."""
    from torchgauge.report.formats.notebook import write_sections

    kind = kind_of(document)
    content, facts = CONTENTS[kind], document[kind]
    first = facts[0] if isinstance(facts, list) else facts
    title = escape(f"{first['target']}: {content.title}")
    picture = render_picture(document) if content.picture else ""
    style = "body{font:15px/1.5 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 1em}svg{max-width:100%}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<style>{style}</style></head><body><h1>{title}</h1>{picture}"
        f"{write_sections(sections_of(document), PLAIN_WIDTH)}</body></html>\n"
    )
