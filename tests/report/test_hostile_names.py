"""Names are data in every format: they come out as text and do nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from tests.report.hostile_sample import LONG, NAMES, hostile_view
from tests.report.read_back import csv_rows, html_tables, page_payload, page_text, parquet_content, xml_document
from tests.report.saved_runs import RUNS, load_run
from torchgauge.report import FORMATS, render, render_bytes, shorten, visible
from torchgauge.report.formats import LONGEST_NAME, schema_text

# Line feeds are the report's own; the rest would act on a terminal, an editor or a parser.
ACTING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufffe\uffff]")
TEXTS = sorted(set(FORMATS) - {"trace", "against.csv"} - {name for name in FORMATS if name.endswith("parquet")})
FORMULA_STARTS = tuple("=+-@＝＋－＠\t\r")  # noqa: RUF001


@cache
def rendered(name: str) -> str:
    return render(hostile_view(), name)


@pytest.mark.parametrize("name", TEXTS)
def test_no_character_acts_on_what_shows_the_report(name: str) -> None:
    assert ACTING.findall(rendered(name)) == []


@pytest.mark.parametrize("name", TEXTS)
def test_every_text_can_be_written_to_a_file(name: str) -> None:
    assert rendered(name).encode()


def test_json_and_json_lines_keep_the_names_as_they_are() -> None:
    document = json.loads(rendered("json"))
    assert [row["path"] for row in document["modules"][1:]] == list(NAMES)
    lines = [json.loads(line) for line in rendered("jsonl").splitlines()]
    assert [line["module"] for line in lines if line["table"] == "ops"] == list(NAMES)


def test_xml_validates_and_has_the_names() -> None:
    xmlschema = pytest.importorskip("xmlschema", reason="validating needs xmlschema")
    xmlschema.XMLSchema(schema_text()).validate(rendered("xml"))
    document = xml_document(rendered("xml"))
    assert [row["path"] for row in document["modules"][1:]] == [visible(name) for name in NAMES]
    assert [row["name"] for row in document["weights"]] == [visible(f"{name}.weight") for name in NAMES]


@pytest.mark.parametrize("name", ["csv", "ops.csv", "weights.csv"])
def test_no_cell_of_a_csv_is_a_formula(name: str) -> None:
    text = rendered(name)
    rows = csv_rows(text)
    assert len(rows) == len(NAMES) + (name == "csv")
    cells = [cell for row in rows for cell in row.values() if not re.fullmatch(r"-?[\d.e+-]+", cell)]
    assert [cell for cell in cells if cell.strip().startswith(FORMULA_STARTS)] == []
    # As a spreadsheet takes the lines that parts them at semicolons.
    parts = [part for cell in cells for part in cell.split(";")]
    assert [part for part in parts if part.strip().startswith(FORMULA_STARTS)] == []


def test_a_cell_of_markdown_breaks_neither_the_table_nor_out_of_its_code() -> None:
    html = MarkdownIt("commonmark").enable("table").render(rendered("markdown"))
    page = page_text(html)
    structure = {
        "h1",
        "h2",
        "p",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "ol",
        "ul",
        "li",
        "pre",
        "code",
        "strong",
    }
    assert set(page.tags) <= structure
    assert {key for key, _ in page.attributes} <= {"style", "class"}
    tables = html_tables(html)
    assert all(len(set(map(len, table))) == 1 for table in tables)
    paths = [row[0] for row in tables[1][2:]]
    expected = [shorten(visible(name), LONGEST_NAME) for name in NAMES]
    assert [path.split("\u00a0", 1)[1].startswith(name) for path, name in zip(paths, expected, strict=True)] == [
        True
    ] * len(NAMES)


def test_a_page_holds_the_names_as_text() -> None:
    if "html" not in FORMATS:
        pytest.skip("there is no page")
    page, plain = page_text(rendered("html")), page_text(render(load_run("cnn"), "html"))
    tile = Counter(["dt", "dd", "b", "small"])  # the dangerous pickle of the sample
    assert Counter(page.tags) == Counter(plain.tags) + tile
    names = set(_texts(page_payload(rendered("html"))))
    assert {visible(name) for name in NAMES if "\n" not in name} <= names


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _texts(item)]


def test_the_notebook_display_holds_the_names_as_text() -> None:
    page = page_text(rendered("fragment"))
    assert set(page.tags) == {"div", "b", "table", "tr", "th", "td", "ol", "ul", "li", "pre"}
    text = "".join(page.text)
    assert [name for name in NAMES if visible(name) not in text] == []


def test_a_picture_holds_the_names_as_text() -> None:
    if "svg" not in FORMATS:
        pytest.skip("there is no picture")
    root = ElementTree.fromstring(rendered("svg"))
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not tags & {"script", "img", "image", "a", "foreignObject"}
    text = " ".join(root.itertext())
    assert [name for name in NAMES if len(name) < 20 and visible(name) not in text] == []


def test_parquet_keeps_the_names_but_for_half_a_surrogate_pair() -> None:
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    rows = parquet_content(render_bytes(hostile_view(), "parquet"))["rows"]
    expected = [name.replace("\ud800", r"\ud800") for name in NAMES]
    assert [row["path"] for row in rows[1:]] == expected
    assert LONG in expected


def test_latex_is_ascii_in_which_no_name_is_a_command() -> None:
    text = rendered("latex")
    assert text.isascii()
    commands = set(re.findall(r"\\[a-zA-Z]+", text))
    assert commands.isdisjoint({r"\N", r"\slash", r"\x", r"\u"})
    assert [line for line in text.splitlines() if r"\input" in line and not line.startswith("%")] == []
    assert text.count(r"\end{tabular}") == text.count(r"\begin{tabular}") > 3


@pytest.mark.parametrize("run", ["hostile", *RUNS])
def test_latex_compiles_in_a_document_that_loads_booktabs_alone(run: str, tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("there is no pdflatex")
    text = rendered("latex") if run == "hostile" else render(load_run(run), "latex")
    (tmp_path / "tables.tex").write_text(text, encoding="ascii")
    (tmp_path / "paper.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{tables}\end{document}"
    )
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape", "paper"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert (tmp_path / "paper.pdf").stat().st_size > 0
    # A smaller overhang is not visible.
    wide = re.findall(r"Overfull \\hbox \((\d+)", (tmp_path / "paper.log").read_text(errors="replace"))
    assert [points for points in wide if int(points) >= 10] == []
