"""The reports of `fit`, `forecast` and `llm`: a JSON document, and sections and a picture that every format renders."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, NamedTuple

from torchgauge import __version__
from torchgauge.facts import Row
from torchgauge.report.escape import html_text, json_value
from torchgauge.report.layout import PLAIN_WIDTH, Line
from torchgauge.report.model import Section
from torchgauge.report.registry import find_format
from torchgauge.report.saving import write_whole
from torchgauge.report.table_rows import rows_to_csv


class Answer(NamedTuple):
    """A figure that stands first on the page; `is_alarm` for a no."""

    label: str
    value: str
    note: str = ""
    is_alarm: bool = False


class PredictionReport(ABC):
    """The result of one of the commands. `kind` names its formats (`registry.OTHERS`); `title` is the heading of the
    page, after the target's name; `picture_title` is that of the picture."""

    kind: ClassVar[str]
    title: ClassVar[str]
    picture_title: ClassVar[str]

    @property
    @abstractmethod
    def target(self) -> str: ...

    @abstractmethod
    def members(self) -> Mapping[str, object]:
        """The members of the JSON document, except its version."""

    @abstractmethod
    def sections(self) -> list[Section]: ...

    @abstractmethod
    def answers(self) -> Iterator[Answer]:
        """What a reader asks for first."""

    @abstractmethod
    def picture(self) -> str:
        """SVG."""

    def table(self) -> list[dict[str, object]]:
        """The rows of a CSV file; empty if the report has no such format."""
        return []

    def document(self) -> dict[str, object]:
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


def render_page(report: PredictionReport) -> str:
    """One file that works offline, made like the page of an analysis: the answers, the picture, the sections."""
    from torchgauge.report.page.assemble import assemble
    from torchgauge.report.page.payload import plain, section_data

    payload = {
        "overview": {
            "name": report.target,
            "kind": report.title,
            "run": "predicted",
            "facts": [],
            "cards": [
                {"label": label, "value": value, "note": note, "kind": "alarm" if is_alarm else "static"}
                for label, value, note, is_alarm in report.answers()
            ],
            "warnings": [],
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "version": __version__,
        },
        "picture": report.picture_title,
        "sections": [
            section_data(section) | {"title": _without_target(section.title, report.target)}
            for section in report.sections()
        ],
    }
    title = f"{report.target}: {report.title}"
    data = {name: plain(part) for name, part in payload.items()}
    return assemble(title, data, ("overview", "prediction"), report.picture())


def _without_target(title: str, target: str) -> str:
    """The title of a section for a page whose heading is the target."""
    short = title.removeprefix(target).removeprefix(":").strip().removeprefix("on ")
    return short[:1].upper() + short[1:] if short else title


def render_fragment(report: PredictionReport) -> str:
    """What a notebook shows."""
    from torchgauge.report.formats.notebook import write_sections

    return f"<div><b>{html_text(report.target)}</b>\n{write_sections(report.sections(), PLAIN_WIDTH)}\n</div>"
