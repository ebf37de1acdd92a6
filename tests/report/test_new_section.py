"""A section is one file: every format for people renders it."""

from __future__ import annotations

import json
import re

import pytest

from tests.extended import copy_package, run_with
from tests.report.sample import HOSTILE, sample_view
from torchgauge.facts import View
from torchgauge.report import Options, render
from torchgauge.report.content import sections_of

FILE = """
from torchgauge.report.layout import Heading
from torchgauge.report.model import Cell, Chart, Code, Facts, Section, Table, Text


def sections(view, options):
    headings = (Heading("Where", is_figure=False), Heading("Answer"))
    rows = tuple((Cell(name=row.path), Cell("42")) for row in view.modules[-1:])
    yield Section("Zaphod", (
        Table("", headings, rows, ("a note of the table",)),
        Facts((("Ships", "two", "one of gold"),)),
        Text("Do not panic"),
        Code("towel = True"),
        Chart((("heads", 2.0, "2 of them"), ("arms", 3.0, "3 of them"))),
    ))
"""
SCRIPT = """
import json, sys, torchgauge
from torchgauge import report
view = torchgauge.load(sys.argv[1])
print(json.dumps({name: report.render(view, name) for name in sys.argv[2:]}))
"""
FORMATS = ("text", "comprehensive", "markdown", "latex", "fragment", "html")


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("extended")
    (copy_package(folder) / "report" / "content" / "zaphod.py").write_text(FILE, encoding="utf-8")
    (folder / "run.json").write_text(render(sample_view(), "json"), encoding="utf-8")
    found: dict[str, str] = json.loads(run_with(folder, "-c", SCRIPT, str(folder / "run.json"), *FORMATS))
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_a_new_file_is_a_new_section_of_every_format(rendered: dict[str, str], name: str) -> None:
    said = ("Zaphod", "Where", "Answer", "42", "a note of the table", "Ships", "two", "one of gold", "panic", "towel",
            "heads", "2 of them", "3 of them")  # fmt: skip
    assert [text for text in said if text not in rendered[name]] == []
    assert HOSTILE not in rendered[name]


def test_the_page_has_the_blocks_of_a_section(rendered: dict[str, str]) -> None:
    payload = re.search(r'id="payload"[^>]*>(.*?)</script>', rendered["html"], re.DOTALL)
    assert payload is not None
    (section,) = json.loads(payload[1])["more"]
    assert [block["kind"] for block in section["blocks"]] == ["table", "facts", "text", "code", "chart"]


@pytest.mark.parametrize("name", ["text", "markdown", "latex", "fragment"])
def test_what_ops_adds_is_in_every_format(name: str) -> None:
    view: View = sample_view()
    titles = [section.title for section in sections_of(view, Options(ops=True))]
    assert "Coverage of ops" in titles
    text = render(view, name, Options(ops=True))
    assert [title for title in titles if title not in text] == []
    assert "Coverage of ops" not in render(view, name)
