from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.read_back import parquet_content
from tests.report.sample import sample_capture
from tests.report.saved_runs import load_run
from torchgauge.errors import MissingDependencyError, TorchgaugeError
from torchgauge.facts import Cost, View
from torchgauge.report import render_bytes


@pytest.fixture
def arrow() -> Any:
    return pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")


@pytest.mark.parametrize("table", ["parquet", "ops.parquet"])
def test_files_of_different_runs_are_one_table(table: str, arrow: Any) -> None:
    import pyarrow

    runs = [load_run("cnn"), load_run("measured")]
    tables = [arrow.read_table(io.BytesIO(render_bytes(run, table))) for run in runs]
    assert tables[0].schema.equals(tables[1].schema)
    whole = pyarrow.concat_tables(tables)
    assert set(whole["target"].to_pylist()) == {"SmallCNN", "SmallTransformer"}


def test_shapes_are_lists_and_figures_numbers(arrow: Any) -> None:
    types = parquet_content(render_bytes(load_run("cnn"), "parquet"))["types"]
    assert types["input_shapes"] == "list<element: list<element: int64>>"
    assert types["aliases"] == "list<element: string>"
    assert (types["macs"], types["time_s"], types["inputs"]) == ("int64", "double", "string")


def test_a_tensor_has_its_histogram(arrow: Any) -> None:
    run = load_run("weights")
    rows = parquet_content(render_bytes(run, "weights.parquet"))["rows"]
    expected = {row.name: row.get("histogram") for row in run.weights}
    for row in rows:
        histogram = expected[row["name"]] or {"edges": None, "counts": None}
        assert (row["histogram_edges"], row["histogram_counts"]) == (histogram["edges"], histogram["counts"])
    assert any(expected.values())


def test_a_count_beyond_64_bits_is_one_clear_error(arrow: Any) -> None:
    capture = sample_capture()
    huge = replace(capture.ops[0].signature, cost=Cost(macs=2**63))
    view = View(replace(capture, ops=(replace(capture.ops[0], signature=huge),)))
    with pytest.raises(TorchgaugeError, match="the column 'macs' has a value that Parquet cannot hold"):
        render_bytes(view, "ops.parquet")


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    with pytest.raises(MissingDependencyError, match=r"pip install torchgauge\[parquet\]"):
        load_run("cnn").save(tmp_path / "run.parquet")
    assert list(tmp_path.iterdir()) == []
