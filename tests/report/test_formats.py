from __future__ import annotations

import csv
import io
import json
import os
import stat
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.report.sample import BLOCKS, HOSTILE, sample_view
from torchgauge.errors import MissingDependencyError, TorchgaugeError, UsageError
from torchgauge.report import (
    FORMATS,
    find_format,
    inert_cell,
    json_value,
    render,
    renderer,
    save,
    to_dataframe,
    visible,
)


class Cells(HTMLParser):
    """The tags and the text of a page; an unbalanced tag fails."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_json_is_the_document_of_the_view() -> None:
    view = sample_view()
    document = json.loads(render(view, "json"))
    expected = view.to_dict()
    assert document.keys() == expected.keys()
    assert document["totals"] == expected["totals"]
    assert document["modules"] == expected["modules"]
    assert [row["index"] for row in document["ops"]] == list(range(view.totals.ops))


def test_the_json_is_strict_where_python_would_write_infinity() -> None:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    document = json.loads(render(sample_view(), "json"), parse_constant=refuse)
    assert document["ops"][4]["attributes"] == {"fill": "-inf"}


def test_a_row_of_the_json_is_a_line() -> None:
    view = sample_view()
    lines = render(view, "json").splitlines()
    assert sum(line.startswith('  {"path": ') for line in lines) == len(view.modules)


def test_values_that_json_cannot_hold_become_text() -> None:
    value = {"a": (1, 2.5, None, True), 3: float("nan"), "s": slice(1)}
    assert json_value(value) == {"a": [1, 2.5, None, True], "3": "nan", "s": "slice(None, 1, None)"}


def test_the_csv_of_modules_has_a_line_per_module_with_raw_figures() -> None:
    view = sample_view()
    rows = list(csv.DictReader(io.StringIO(render(view, "csv"))))
    assert [int(row["macs"]) for row in rows] == [row.macs for row in view.modules]
    assert rows[0]["input_shapes"] == "1x3x32x32"
    assert json.loads(rows[0]["outputs"]) == {"logits": {"shape": [16, 64], "dtype": "float32"}}
    assert rows[0]["time_s"] == ""
    assert rows[-1]["path"] == r"\x1b[31m[b]<i>"


def test_the_csv_of_ops_has_a_line_per_call() -> None:
    rows = list(csv.DictReader(io.StringIO(render(sample_view(), "ops.csv"))))
    assert sum(row["op"] == "my::mix" for row in rows) == BLOCKS
    assert rows[0]["input_shapes"] == "1x3x32x32 64x3x8x8"
    assert rows[3]["weights"] == "blocks.0.fc.weight"


def test_the_notebook_display_is_balanced_html_with_escaped_names() -> None:
    page = render(sample_view(), "fragment")
    cells = Cells()
    cells.feed(page)
    assert cells.open == []
    assert cells.seen == {"div", "b", "table", "tr", "th", "td", "ul", "li"}
    assert HOSTILE not in page
    assert any(r"\x1b[31m[b]<i> Linear" in text for text in cells.text)
    assert any("my::mix" in text for text in cells.text)


@pytest.mark.parametrize(("table", "length"), [("modules", 32), ("ops", 30)])
def test_a_dataframe_has_the_rows_of_the_view(table: str, length: int) -> None:
    view = sample_view()
    frame = to_dataframe(view, table)
    assert len(frame) == length
    assert list(frame.columns) == list(getattr(view, table)[0])
    assert frame["macs"].tolist() == [row.macs for row in getattr(view, table)]


def test_an_unknown_table_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no table 'layers'; choose from: modules, ops"):
        to_dataframe(sample_view(), "layers")


def test_a_dataframe_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"pip install torchgauge\[dataframe\]"):
        to_dataframe(sample_view())


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("run.json", "json"),
        ("run.csv", "csv"),
        ("run.ops.csv", "ops.csv"),
        ("RUN.OPS.CSV", "ops.csv"),
        ("a.b/run.v2.txt", "text"),
    ],
)
def test_the_longest_suffix_names_the_format(path: str, name: str) -> None:
    assert find_format(path).name == name


@pytest.mark.parametrize("path", ["run", "run.docx", "json", "run.json.gz"])
def test_an_unknown_suffix_is_a_usage_error_that_lists_the_known_ones(path: str) -> None:
    with pytest.raises(UsageError, match=r"must end in one of: \.") as caught:
        find_format(path)
    assert {".csv", ".json", ".jsonl", ".ops.csv", ".txt"} < set(str(caught.value).split(": ")[-1].split(", "))


def test_an_unknown_format_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"no format 'word'; choose from: ") as caught:
        render(sample_view(), "word")
    assert {"csv", "fragment", "json", "ops.csv", "text"} < set(str(caught.value).split(": ")[-1].split(", "))


@pytest.mark.parametrize(("name", "suffix"), [("json", ".other"), ("other", ".json")])
def test_a_second_renderer_for_a_format_or_suffix_raises(name: str, suffix: str) -> None:
    before = dict(FORMATS)
    with pytest.raises(ValueError, match="is already registered"):
        renderer(name, suffix=suffix)(lambda view, options: "")
    assert before == FORMATS


def test_a_user_adds_a_format_with_one_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(FORMATS, "names", raising=False)
    renderer("names", suffix=".names")(lambda view, options: view.modules[1].path)
    save(sample_view(), tmp_path / "a.names")
    assert (tmp_path / "a.names").read_text() == "stem"
    del FORMATS["names"]


def test_saving_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    save(sample_view(), path)
    assert json.loads(path.read_text())["schema_version"] == 1
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_failed_save_keeps_the_old_file_and_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(TorchgaugeError, match=r"cannot write .*: No space left on device"):
        save(sample_view(), path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.json"]


def test_saving_into_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TorchgaugeError, match="No such file"):
        save(sample_view(), tmp_path / "missing" / "run.txt")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permission bits")
def test_a_saved_file_has_ordinary_permissions(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    save(sample_view(), tmp_path / "run.txt")
    assert stat.S_IMODE((tmp_path / "run.txt").stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_saving_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    link, target = tmp_path / "latest.txt", tmp_path / "first.txt"
    link.symlink_to(target)
    save(sample_view(), link)
    assert link.is_symlink()
    assert "MACs" in target.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layers.0", "layers.0"),
        ("größe 名", "größe 名"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202eevil", r"\u202eevil"),
        ("\u2028", r"\u2028"),
        ("\ud800", r"\ud800"),
        ("\x9b31m", r"\x9b31m"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_hidden_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(("text", "cell"), [("=SUM(A1)", "'=SUM(A1)"), ("@x", "'@x"), ("conv-1", "conv-1"), ("", "")])
def test_a_cell_is_never_a_formula(text: str, cell: str) -> None:
    assert inert_cell(text) == cell
