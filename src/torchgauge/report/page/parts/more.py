"""The sections of `report/content`, for a script that knows blocks alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torchgauge.facts import View
from torchgauge.report.content import sections_of
from torchgauge.report.model import Block, Table
from torchgauge.report.options import Options
from torchgauge.report.page.payload import part


@part("more")
def more(view: View, options: Options) -> list[dict[str, Any]] | None:
    found = list(sections_of(view, options))
    return [{"title": one.title, "blocks": [_block(block) for block in one.blocks]} for one in found] or None


def _block(block: Block) -> dict[str, Any]:
    kind = {"kind": type(block).__name__.lower()}
    if not isinstance(block, Table):
        return kind | asdict(block)
    headings = [{"title": heading.title, "is_figure": heading.is_figure} for heading in block.headings]
    rows = [[cell.name + cell.text for cell in row] for row in block.rows]
    return kind | {"headings": headings, "rows": rows, "notes": list(block.notes)}
