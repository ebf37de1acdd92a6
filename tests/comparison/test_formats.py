"""Every format of a comparison has the same figures, and names are text in all of them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import torchgauge
from tests.report.sample import HOSTILE, LINEAR_PARAMS, sample_capture, sample_view
from torchgauge.analysis import Analysis, Comparison, is_saved_run
from torchgauge.errors import UsageError
from torchgauge.facts import Capture
from torchgauge.report import Options

MARKUP = "</script><img src=x onerror=alert(1)>"


def pruned() -> Capture:
    """The sample without its last linear layer, whose name is hostile too."""
    capture = sample_capture()
    root = capture.modules[0]
    smaller = replace(root, params=root.params - LINEAR_PARAMS)
    return replace(
        capture,
        target=replace(capture.target, name=MARKUP),
        modules=(smaller, *(record for record in capture.modules[1:] if record.path != HOSTILE)),
        params=tuple(param for param in capture.params if param.module != HOSTILE),
        ops=tuple(op for op in capture.ops if op.module != HOSTILE),
    )


@pytest.fixture
def comparison() -> Comparison:
    return Comparison([Analysis(sample_capture()), Analysis(pruned())])


@pytest.mark.parametrize("sides", [2, 3, 5])
def test_text_fits_eighty_columns_with_any_number_of_sides(sides: int) -> None:
    found = Comparison([Analysis(sample_capture()), *(Analysis(pruned()) for _ in range(sides - 1))])
    text = found.render("text", Options(width=80, columns=("params", "macs", "flops")))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.count("Parameters") == {2: 1, 3: 1, 5: 2}[sides]


def test_text_names_what_went_and_how_much_that_was(comparison: Comparison) -> None:
    text = str(comparison)
    removed = next(line for line in text.splitlines() if line.startswith("removed"))
    assert removed.split() == ["removed", "\\x1b[31m[b]<i>", "Linear", "4.16", "k"]
    assert "\x1b" not in text


def test_the_document_holds_the_totals_and_survives_json(comparison: Comparison) -> None:
    document = json.loads(comparison.render("json"))
    assert document == json.loads(json.dumps(comparison.to_dict()))
    totals = {row["key"]: row for row in document["totals"]}
    params = [sample_view().totals.params, sample_view().totals.params - LINEAR_PARAMS]
    assert totals["params"]["values"] == params
    assert totals["params"]["changes"][1]["difference"] == -LINEAR_PARAMS
    assert document["structure"][0]["changes"][0]["state"] == "removed"


def test_csv_and_dataframe_have_one_row_per_module(comparison: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(comparison.render("csv"))))
    frame = comparison.to_dataframe()
    assert len(rows) == len(frame) == len(sample_capture().modules)
    gone = rows[-1]
    assert (gone["state_A"], gone["state_B"], gone["params_A"], gone["params_B"]) == ("same", "removed", "4160", "")
    assert frame["macs_A"].iloc[0] == sample_view().totals.macs


def test_markdown_holds_no_markup_of_names(comparison: Comparison) -> None:
    text = comparison.render("md")
    assert "<img" not in text
    assert "| Parameters |" in text


def test_markdown_reads_as_the_tables_that_it_shows() -> None:
    name = "www.x.org @user | `code` *bold*"
    sides = [Analysis(replace(sample_capture(), target=replace(sample_capture().target, name=name))) for _ in range(2)]
    html = MarkdownIt("commonmark").enable("table").render(Comparison(sides).render("md"))
    assert html.count(f'<td style="text-align:left">{name}</td>') == 2
    assert "www.x" not in Comparison(sides).render("md"), "GitHub would make it a link"


@pytest.mark.parametrize("format", ["html", "fragment"])
def test_names_are_text_in_html(format: str, comparison: Comparison) -> None:
    text = comparison.render(format)
    assert MARKUP not in text
    assert "<img" not in text


def test_a_file_is_written_by_its_suffix(tmp_path: Path, comparison: Comparison) -> None:
    comparison.save(tmp_path / "c.md")
    assert (tmp_path / "c.md").read_text().startswith("## Comparison")
    with pytest.raises(UsageError, match=r"\.csv, \.html, \.json, \.md, \.txt"):
        comparison.save(tmp_path / "c.docx")
    with pytest.raises(UsageError, match=r"the name must end in one of"):
        comparison.save(tmp_path / "c.ops.csv")
    with pytest.raises(UsageError, match="no format 'docx'; choose from: csv, "):
        comparison.render("docx")
    with pytest.raises(UsageError, match="'path' cannot be compared"):
        comparison.render("text", Options(columns=("path",)))


def test_an_option_that_analyze_does_not_have_is_an_error_also_where_all_is_analysed(comparison: Comparison) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        torchgauge.compare(*comparison.analyses, colour="red")


def test_a_name_does_not_act_on_the_terminal_through_repr() -> None:
    capture = sample_capture()
    found = Comparison([Analysis(replace(capture, target=replace(capture.target, name="\x1b[31m"))) for _ in range(2)])
    assert repr(found) == "<Comparison of \\x1b[31m, \\x1b[31m>"


def test_saved_runs_and_models_are_compared_alike(tmp_path: Path) -> None:
    from torch import nn

    small, large = nn.Linear(4, 2), nn.Linear(4, 6)
    analysis = torchgauge.analyze(small, input_size=(1, 4))
    analysis.save(tmp_path / "small.json")
    found = torchgauge.compare(tmp_path / "small.json", large, analysis, input_size=(1, 4))
    values = {figure.quantity.key: [r.value for r in figure.readings] for figure in found.data.figures}
    assert values["params"] == [10, 30, 10]
    assert values["macs"] == [8, 24, 8]
    assert repr(found) == "<Comparison of Linear, Linear, Linear>"
    assert found._repr_html_().startswith("<div>")


def test_five_sides_of_many_modules_are_grouped_by_place(comparison: Comparison) -> None:
    """Figures that are equal on all sides are omitted, and so are those of absent modules."""
    table = comparison.render("text").split("Modules that differ\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in table[1:3]] == ["Sample", "\\x1b[31m[b]<i>"]
    assert len(table) == 3


@pytest.mark.parametrize(
    ("target", "is_saved"),
    [
        ("run.json", True),
        (Path("RUN.JSON"), True),
        ("hf:folder/config.json", False),
        ("model.pt", False),
        (None, False),
    ],
)
def test_a_saved_run_is_known_by_its_name(target: str | Path | None, is_saved: bool) -> None:
    assert is_saved_run(target) is is_saved
