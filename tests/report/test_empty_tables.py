"""A table without rows has its columns: files of many runs are read together, and some runs have none."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from tests.report.saved_runs import load_run
from torchgauge.report import render, render_bytes


def header(text: str) -> list[str]:
    return next(csv.reader(io.StringIO(text)))


def test_the_ops_of_a_file_of_weights_are_a_csv_with_columns_and_no_rows() -> None:
    text = render(load_run("weights"), "ops.csv")
    assert text.count("\n") == 1
    assert header(text) == header(render(load_run("cnn"), "ops.csv"))


def test_the_weights_of_a_live_model_are_a_csv_with_columns_and_no_rows() -> None:
    text = render(load_run("cnn"), "weights.csv")
    columns = header(text)
    assert text.count("\n") == 1
    assert columns == header(render(load_run("weights"), "weights.csv"))[: len(columns)]
    assert {"name", "shape", "bytes"} <= set(columns)


@pytest.mark.parametrize(("table", "run"), [("ops", "weights"), ("weights", "cnn")])
def test_a_dataframe_has_them_too(table: str, run: str) -> None:
    pytest.importorskip("pandas", reason="a DataFrame needs pandas")
    frame = load_run(run).to_dataframe(table)
    assert len(frame) == 0
    assert list(frame.columns) == header(render(load_run(run), f"{table}.csv"))


def test_parquet_of_a_run_without_ops_is_one_table_with_another() -> None:
    arrow: Any = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    import pyarrow

    runs = [load_run("weights"), load_run("cnn")]
    tables = [arrow.read_table(io.BytesIO(render_bytes(run, "ops.parquet"))) for run in runs]
    assert tables[0].schema.equals(tables[1].schema)
    assert pyarrow.concat_tables(tables).num_rows == runs[1].totals.ops
