"""A section is one file: every format for people renders it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import escape

import pytest

from tests.extended import SOURCE, copy_package, run_with
from tests.report.sample import HOSTILE, sample_view
from tests.report.saved_runs import RUNS, load_run
from torchgauge.facts import View
from torchgauge.report import Options, Topic, render
from torchgauge.report.content import sections_of
from torchgauge.report.formats import LEFT_OUT, escape_latex, escape_markdown

FILE = """
from torchgauge.report import Heading
from torchgauge.report.model import (
    Cell, Chart, Code, Course, Facts, Item, Listing, Point, Scatter, Section, Table, Text
)


def sections(view, options):
    headings = (Heading("Where", is_figure=False), Heading("Answer"))
    rows = tuple((Cell(name=row.path), Cell("42")) for row in view.modules[-1:])
    yield Section("Zaphod", (
        Table("", headings, rows, ("a note of the table",)),
        Facts((("Ships", "two", "one of gold"),)),
        Text("Do not panic"),
        Code("towel = True"),
        Chart((("heads", 2.0, "2 of them"), ("arms", 3.0, "3 of them"))),
        Listing((Item("First say goodbye", (("whale", "surprised"),), "so_long()"),), mark="1."),
        Course((("improbability", (1.0, 2.0), "rising"),)),
        Scatter((Point(1.0, 2.0),), "6 x", "9 y"),
    ))
"""
SCRIPT = """
import json, sys, torchgauge
from torchgauge import report
view = torchgauge.load(sys.argv[1])
print(json.dumps({name: report.render(view, name) for name in sys.argv[2:]}))
"""
PROSE = ("text", "markdown", "latex", "fragment")
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
            "heads", "2 of them", "3 of them", "First say goodbye", "surprised")  # fmt: skip
    assert [text for text in said if text not in rendered[name]] == []
    assert HOSTILE not in rendered[name]


def test_the_page_has_the_blocks_of_a_section(rendered: dict[str, str]) -> None:
    payload = re.search(r'id="payload"[^>]*>(.*?)</script>', rendered["html"], re.DOTALL)
    assert payload is not None
    (section,) = json.loads(payload[1])["more"]
    assert [block["kind"] for block in section["blocks"]] == [
        "table",
        "facts",
        "text",
        "code",
        "chart",
        "listing",
        "facts",
        "code",
    ]


@pytest.mark.parametrize("name", PROSE)
@pytest.mark.parametrize("run", RUNS)
def test_every_format_renders_every_section(run: str, name: str) -> None:
    view = load_run(run)
    sections = [one for one in sections_of(view, Options(ops=True)) if name != "latex" or one.topic not in LEFT_OUT]
    titles = [one.title for one in sections if one.topic is not Topic.SUMMARY]
    assert {"Modules", "Coverage of ops" if view.capture.has_code else "Values of the parameters"} <= set(titles)
    escapes: dict[str, Callable[[str], str]] = {"markdown": escape_markdown, "latex": escape_latex, "fragment": escape}
    text = render(view, name, Options(ops=True))
    assert [title for title in titles if escapes.get(name, str)(title) not in text] == []


@pytest.mark.parametrize("name", ["text", "fragment"])
def test_a_screen_has_the_ops_only_on_request(name: str) -> None:
    view: View = sample_view()
    assert "Coverage of ops" in render(view, name, Options(ops=True))
    assert "Coverage of ops" not in render(view, name)


def test_no_format_builds_tables() -> None:
    """Tables and facts are built in `content`; what renders them takes them from a section, and from nowhere else."""
    makers = re.compile(r"\b(lay_out|Facts|Section)\((?!\))")
    drawn = {"text.py": {"lay_out"}}
    for path in (SOURCE / "report" / "formats").glob("*.py"):
        assert set(makers.findall(path.read_text(encoding="utf-8"))) <= drawn.get(path.name, set()), path.name
