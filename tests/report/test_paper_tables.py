"""Markdown and LaTeX: what a text becomes in them, and what their tables hold."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from tests.report.energy_sample import estimated_energy
from tests.report.read_back import latex_tables
from tests.report.sample import sample_capture, sample_view
from tests.report.saved_runs import load_run
from torchgauge.facts import View
from torchgauge.report import Options, inert_cell, render
from torchgauge.report.formats import code, escape_latex, escape_markdown
from torchgauge.report.formats import paragraph as latex_paragraph


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("layer1.0.conv_1", "`layer1.0.conv_1`"),
        ("<b>", "`<b>`"),
        ("a`b", "<code>a&#96;b</code>"),
        ("a|b", "<code>a&#124;b</code>"),
        ("a\\b", "<code>a&#92;b</code>"),
        ("a\nb", "<code>a&#92;nb</code>"),
        (" a", "<code> a</code>"),
        ("", ""),
    ],
)
def test_a_name_is_code_in_markdown(name: str, written: str) -> None:
    assert code(name) == written


@pytest.mark.parametrize(
    "text",
    [
        "a_b is *bold* and __strong__ and ~~gone~~",
        "[link](http://x) <http://x> http://x www.x.org",
        "a | b \\| c `d` \\*",
        "&amp; &#60; <b>x</b> <!-- y -->",
        "$x$ @user #12 :smile: aten::add",
    ],
)
def test_escaped_markdown_shows_the_original_text(text: str) -> None:
    html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(f"| {escape_markdown(text)} |\n| --- |\n")
    shown = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert f"<th>{shown}</th>" in html


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("conv-1_2", r"conv{-}1\_2"),
        ("\\input{x}", r"\textbackslash{}input\{x\}"),
        ("50 % & $5 #1 ~ ^", r"50 \% \& \$5 \#1 \textasciitilde{} \textasciicircum{}"),
        ("1×3 ≈ 2 µs", r"1$\times$3 $\approx$ 2 $\mu$s"),
        ("é ñ ü í ç", r"\'{e} \~{n} \"{u} \'{\i} \c{c}"),
        ("名", r"\textbackslash{}u540d"),
        ("[b]*", "{[}b]{*}"),
        ("\x1b\n", r"\textbackslash{}x1b\textbackslash{}n"),
    ],
)
def test_a_text_is_typeset_as_itself_in_latex(text: str, written: str) -> None:
    assert escape_latex(text) == written


@pytest.mark.parametrize("form", ["markdown", "latex"])
def test_columns_depth_and_order_are_those_asked_for(form: str) -> None:
    text = render(sample_view(), form, Options(depth=1, columns=("calls", "param_bytes"), sort="param_bytes"))
    table = text[text.index("Calls") :]
    assert "Param bytes" in table
    assert "fc" not in table.split("Most expensive")[0]
    assert table.index("blocks") < table.index("stem") < table.index("shared")


def test_a_table_that_floats_fits_a_page_unless_a_depth_is_asked_for() -> None:
    capture = sample_capture()
    root, first = capture.modules[:2]
    modules = (root, *(replace(first, path=f"m{i}", type=f"T{i}") for i in range(80)))
    view = View(replace(capture, modules=modules, ops=(), params=()))
    cut, whole = (latex_tables(render(view, "latex", options)) for options in (Options(), Options(depth=1)))
    assert (len(cut["modules"]), len(whole["modules"])) == (50, 81)
    assert "The first 50 of 81 rows" in render(view, "latex")


def test_a_wide_table_cuts_its_names_not_its_figures() -> None:
    capture = sample_capture()
    modules = tuple(replace(record, type="T" * 60) for record in capture.modules)
    columns = ("params", "param_bytes", "macs", "flops", "bytes_read", "bytes_written")
    rows = latex_tables(render(View(replace(capture, modules=modules)), "latex", Options(columns=columns)))["modules"]
    assert [row[1:] for row in rows] == [row[1:] for row in latex_tables(
        render(sample_view(), "latex", Options(columns=columns)))["modules"]]  # fmt: skip
    widest = [max(len(row[column]) for row in rows) for column in range(1, len(columns) + 1)]
    assert sum(widest) + max(row[0].count("T") for row in rows) <= 78


@pytest.mark.parametrize(
    ("remark", "written"),
    [
        ("of 1,589,658 bytes", "of 1,589,658 bytes"),
        (
            "at aten::add in blocks.0.norm",
            r"{\raggedright at aten::\allowbreak{}add in blocks.\allowbreak{}0.\allowbreak{}norm\par}",
        ),
        (
            "0123456789" * 3,
            "{\\raggedright " + "0123456789" * 2 + r"\allowbreak{}" + r"\allowbreak{}".join("0123456789") + r"\par}",
        ),
    ],
)
def test_a_remark_of_several_lines_breaks_in_words_but_not_in_numbers(remark: str, written: str) -> None:
    assert latex_paragraph(remark, room=20) == written


@pytest.mark.parametrize(("form", "about"), [("markdown", "≈ "), ("latex", r"$\approx$ ")])
def test_an_estimated_figure_is_marked(form: str, about: str) -> None:
    line = next(line for line in render(estimated_energy(), form).splitlines() if "Energy, ESTIMATED" in line)
    assert about in line


@pytest.mark.parametrize("form", ["markdown", "latex"])
def test_equal_blocks_are_one_row_and_that_is_said(form: str) -> None:
    text = render(sample_view(), form)
    assert text.count("Block") == 1
    assert "n equal blocks in a row" in text


def test_an_op_without_a_formula_is_unknown_in_markdown() -> None:
    line = next(line for line in render(sample_view(), "markdown").splitlines() if line.startswith("| `my::mix`"))
    assert line.endswith("| 12 | ? | ? | ? |")


def test_json_lines_begin_with_the_run_and_name_their_table() -> None:
    lines = [json.loads(line) for line in render(load_run("weights"), "jsonl").splitlines()]
    assert list(dict.fromkeys(line["table"] for line in lines)) == ["run", "modules", "parameters", "weights", "advice"]
    assert lines[0]["totals"]["params"] == 512


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("＝1+1", "'＝1+1"),  # noqa: RUF001
        ("＋1", "'＋1"),  # noqa: RUF001
        ("－1", "'－1"),  # noqa: RUF001
        ("＠x", "'＠x"),  # noqa: RUF001
        (" =1", "' =1"),
        ("\t=1", r"\t=1"),
        ("\r=1", r"\r=1"),
        ("a;=1", "a;'=1"),
        ("a; @x;-2", "a; '@x;'-2"),
        ("a;b-c", "a;b-c"),
        ("conv-1=2", "conv-1=2"),
    ],
)
def test_no_spreadsheet_reads_a_formula(text: str, cell: str) -> None:
    assert inert_cell(text) == cell
