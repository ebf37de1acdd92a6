"""The sections of `report/content` that no other part of the page shows, for a script that knows blocks alone."""

from __future__ import annotations

from dataclasses import asdict

from torchgauge.facts import View
from torchgauge.report.bars import course_rows, scatter
from torchgauge.report.content import sections_of
from torchgauge.report.model import Block, Course, Listing, Scatter, Table
from torchgauge.report.options import Options
from torchgauge.report.page.payload import part

DRAWN = 60  # characters of a line over time, and of a plot


@part("more")
def more(view: View, options: Options) -> list[dict[str, object]] | None:
    found = [section for section in sections_of(view, options) if not section.page_part]
    return [{"title": one.title, "blocks": [_block(block) for block in one.blocks]} for one in found] or None


def _block(block: Block) -> dict[str, object]:
    match block:
        case Table():
            headings = [{"title": heading.title, "is_figure": heading.is_figure} for heading in block.headings]
            rows = [[cell.plain for cell in row] for row in block.rows]
            return {"kind": "table", "headings": headings, "rows": rows, "notes": list(block.notes)}
        case Listing():
            items = [
                {"text": item.name + item.text, "facts": list(item.facts), "code": item.code} for item in block.items
            ]
            return {"kind": "listing", "items": items, "is_numbered": block.mark == "1."}
        case Course():
            return {"kind": "facts", "rows": course_rows(block, DRAWN)}
        case Scatter():
            return {"kind": "code", "text": "\n".join(scatter(block, DRAWN))}
        case _:
            return {"kind": type(block).__name__.lower(), **asdict(block)}
