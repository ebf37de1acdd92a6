"""The reports of `fit`, `forecast` and `llm`: a JSON document, and sections and a picture that every format renders."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from torchgauge.facts import Row
from torchgauge.report.escape import html_text, json_value
from torchgauge.report.layout import PLAIN_WIDTH, Line
from torchgauge.report.model import Section
from torchgauge.report.registry import find_format
from torchgauge.report.saving import write_whole
from torchgauge.report.table_rows import rows_to_csv


class PredictionReport(ABC):
    """The result of one of the commands. `kind` names its formats (`registry.OTHERS`); `title` is the heading of the
    page, after the target's name."""

    kind: ClassVar[str]
    title: ClassVar[str]

    @property
    @abstractmethod
    def target(self) -> str: ...

    @abstractmethod
    def members(self) -> Mapping[str, object]:
        """The members of the JSON document, except its version."""

    @abstractmethod
    def sections(self) -> list[Section]: ...

    @abstractmethod
    def picture(self) -> str:
        """SVG."""

    def table(self) -> list[dict[str, object]]:
        """The rows of a CSV file; empty if the report has no such format."""
        return []

    def document(self) -> dict[str, object]:
        from torchgauge import __version__

        return {"schema_version": 1, "tool": {"name": "torchgauge", "version": __version__}, **self.members()}

    def render(self, path: str | Path) -> str:
        """Render in the format that the suffix names."""
        format = find_format(path, self.kind)
        return str(format.render(self.sections(), PLAIN_WIDTH) if format.is_prose else format.render(self))

    def save(self, path: str | Path) -> None:
        write_whole(Path(path), self.render(path))

    def lines(self, width: int) -> list[Line]:
        """The report of the terminal."""
        from torchgauge.report.formats.text import sections_lines

        return sections_lines(self.sections(), width)

    def __str__(self) -> str:
        return self.render("report.txt").rstrip("\n")


def render_json(report: PredictionReport) -> str:
    return json.dumps(json_value(report.document()), indent=1, allow_nan=False) + "\n"


def render_csv(report: PredictionReport) -> str:
    return rows_to_csv([Row(row) for row in report.table()])


def render_picture(report: PredictionReport) -> str:
    return report.picture()


# Tables and pictures that are wider than a narrow screen scroll by themselves; the page does not.
_PAGE_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 1em}h1{font-size:1.6em}"
    "b{display:block;margin-top:1.6em;font-size:1.1em}table{display:block;overflow-x:auto;max-width:100%}td{white-space:nowrap}"
    ".wide{overflow-x:auto}.wide svg{width:100%;min-width:42em}pre{overflow-x:auto}"
)


def render_page(report: PredictionReport) -> str:
    """One file that works offline: the picture and the sections."""
    from torchgauge.report.formats.notebook import write_sections

    title = html_text(f"{report.target}: {report.title}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<style>{_PAGE_STYLE}</style></head><body><h1>{title}</h1><div class="wide">{report.picture()}</div>'
        f"{write_sections(report.sections(), PLAIN_WIDTH)}</body></html>\n"
    )
