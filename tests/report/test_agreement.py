"""Every format of one analysis says the same: each is read back and compared with the JSON document, exactly where it
gives plain numbers, through `units` where it gives text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.report.read_back import (
    Rows,
    csv_rows,
    html_tables,
    latex_tables,
    markdown_tables,
    node_work,
    page_column,
    page_payload,
    parquet_content,
    xml_document,
)
from tests.report.saved_runs import RUNS, load_run
from torchgauge.errors import UsageError
from torchgauge.facts import Row, View
from torchgauge.report import BY_FLOPS, COLUMNS, DEFAULT_COLUMNS, FORMATS, columns_of, flat_rows, render_bytes, top_ops
from torchgauge.report.content import RANKED_ROWS, summary_facts
from torchgauge.units import format_bytes, format_count, format_exact

Document = dict[str, Any]
# The view, its JSON document, the bytes of another format.
Check = Callable[[View, Document, bytes], None]


def known(value: Any) -> Any:
    """Without members that are null, as XML has it."""
    if isinstance(value, dict):
        return {key: known(item) for key, item in value.items() if item is not None}
    return [known(item) for item in value] if isinstance(value, list) else value


def check_json(view: View, document: Document, data: bytes) -> None:
    assert json.loads(data) == document


def check_jsonl(view: View, document: Document, data: bytes) -> None:
    found: Document = {}
    for line in map(json.loads, data.decode().splitlines()):
        table = line.pop("table")
        if table == "run":
            found = line | {key: [] for key in document if key not in line}
        else:
            found[table].append(line)
    assert found == document


def check_xml(view: View, document: Document, data: bytes) -> None:
    assert xml_document(data.decode()) == known(document)


def check_csv(rows: Rows, data: bytes) -> None:
    found = csv_rows(data.decode())
    assert len(found) == len(rows)
    for row, cells in zip(rows, found, strict=True):
        for key, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert float(cells[key]) == value, key
            elif value is None:
                assert cells[key] == "", key


def check_modules_csv(view: View, document: Document, data: bytes) -> None:
    check_csv(document["modules"], data)


def check_ops_csv(view: View, document: Document, data: bytes) -> None:
    check_csv(document["ops"], data)


def check_weights_csv(view: View, document: Document, data: bytes) -> None:
    check_csv([dict(row) for row in flat_rows([Row(row) for row in document["weights"]])], data)


def check_weights_jsonl(view: View, document: Document, data: bytes) -> None:
    assert [json.loads(line) for line in data.splitlines()] == document["weights"]


def check_parquet(rows: Rows, document: Document, data: bytes) -> None:
    content = parquet_content(data)
    assert content["metadata"]["totals"] == document["totals"]
    assert len(content["rows"]) == len(rows)
    for row, found in zip(rows, content["rows"], strict=True):
        for key, value in row.items():
            is_text = isinstance(found.get(key), str) and not isinstance(value, str)
            assert (json.loads(found[key]) if is_text else found.get(key)) == value, key


def check_modules_parquet(view: View, document: Document, data: bytes) -> None:
    check_parquet(document["modules"], document, data)


def check_ops_parquet(view: View, document: Document, data: bytes) -> None:
    check_parquet(document["ops"], document, data)


def check_weights_parquet(view: View, document: Document, data: bytes) -> None:
    check_parquet([dict(row) for row in flat_rows([Row(row) for row in document["weights"]])], document, data)


def check_page(view: View, document: Document, data: bytes) -> None:
    payload = page_payload(data.decode())
    for table, keys in {
        "modules": ("params", "param_bytes", "macs", "flops", "time_s", "energy_j"),
        "ops": ("macs", "flops", "bytes_read", "bytes_written", "live_bytes", "time_s", "energy_j"),
    }.items():
        rows, store = document[table], payload[table]
        assert (store["length"] if store else 0) == len(rows)
        for key in keys if rows else ():
            assert page_column(store, key) == [row[key] for row in rows], key


def check_trace(view: View, document: Document, data: bytes) -> None:
    events = [event for event in json.loads(data)["traceEvents"] if "flops" in event.get("args", {})]
    flops = {row["index"]: row["flops"] for row in document["ops"] if row["status"] == "counted"}
    assert {event["args"]["op"]: event["args"]["flops"] for event in events} == flops


def module_cells(view: View) -> list[list[str]]:
    """The rows that a table of modules must show; none of the saved runs has blocks that fold."""
    keys = columns_of(view, DEFAULT_COLUMNS)
    return [[COLUMNS[key].form(row[key]) for key in keys] for row in view.modules]


def check_summary(view: View, cells: Sequence[Sequence[str]]) -> None:
    expected = [value for _, value, _ in summary_facts(view) if value]
    assert [row[1] for row in cells if row[1]] == expected
    assert format_exact(view.totals.params) in expected


def check_markdown(view: View, document: Document, data: bytes) -> None:
    tables = markdown_tables(data.decode())
    assert [row[1:] for row in tables["Modules"][1:]] == module_cells(view)
    check_summary(view, tables["Summary"][1:])
    ops = [
        [format_exact(op.calls), format_count(op.macs), format_count(op.flops)]
        for op in top_ops(view, BY_FLOPS, RANKED_ROWS[1])
    ]
    assert [row[2:5] for row in tables.get("Most expensive ops, equal calls together", [])[1:]] == ops


def check_latex(view: View, document: Document, data: bytes) -> None:
    tables = latex_tables(data.decode())
    assert [row[1:] for row in tables["modules"]] == module_cells(view)
    check_summary(view, tables["summary"])


def check_fragment(view: View, document: Document, data: bytes) -> None:
    summary, modules, *_ = html_tables(data.decode())
    assert [row[1:] for row in modules[1:]] == module_cells(view)
    check_summary(view, summary)


def text_cells(text: str, view: View) -> list[list[str]]:
    """The cells of the table of modules in a text report: two spaces and more are between them."""
    count, columns = len(view.modules), len(columns_of(view, DEFAULT_COLUMNS))
    lines = re.split(r"^Module {2,}.*\n", text, maxsplit=1, flags=re.MULTILINE)[1].splitlines()[:count]
    return [re.split(r"\s{2,}", line.strip())[-columns:] for line in lines]


def check_text(view: View, document: Document, data: bytes) -> None:
    text = data.decode()
    assert text_cells(text, view) == module_cells(view)
    if view.capture.has_code:
        assert re.search(rf"^MACs +{format_count(view.totals.macs)} ", text, re.MULTILINE)
        assert re.search(rf"^Memory +{format_bytes(view.totals.total_bytes)} ", text, re.MULTILINE)


def check_comprehensive(view: View, document: Document, data: bytes) -> None:
    text = data.decode()
    assert text_cells(text, view) == module_cells(view)
    assert list(node_work(text)) == [(row["index"], row["macs"], row["flops"]) for row in document["ops"]]
    assert f"Total parameters  {format_exact(view.totals.params)}" in text


def check_weights_text(view: View, document: Document, data: bytes) -> None:
    assert re.search(rf"^Parameters +{format_exact(view.totals.params)}\b", data.decode(), re.MULTILINE)


def check_graph(view: View, document: Document, data: bytes) -> None:
    shown = set(re.findall(r"([\d.]+(?: [kMGTPE])?) MACs", data.decode()))
    assert shown == {format_count(row["macs"]) for row in document["modules"] if row["path"] and row["macs"]}


CHECKS: dict[str, Check] = {
    "json": check_json,
    "jsonl": check_jsonl,
    "xml": check_xml,
    "csv": check_modules_csv,
    "ops.csv": check_ops_csv,
    "weights.csv": check_weights_csv,
    "weights.jsonl": check_weights_jsonl,
    "parquet": check_modules_parquet,
    "ops.parquet": check_ops_parquet,
    "weights.parquet": check_weights_parquet,
    "html": check_page,
    "trace": check_trace,
    "markdown": check_markdown,
    "latex": check_latex,
    "fragment": check_fragment,
    "text": check_text,
    "comprehensive": check_comprehensive,
    "weights": check_weights_text,
    "dot": check_graph,
    "svg": check_graph,
}
# It compares two checkpoints, and is compared with its own figures in tests/weights.
NOT_OF_ONE_RUN = {"against.csv"}
REFUSED = {
    ("cnn", "trace"), ("weights", "trace"), ("cnn", "weights.jsonl"), ("measured", "weights.jsonl"),
}  # fmt: skip


def test_every_format_is_compared() -> None:
    assert set(FORMATS) - NOT_OF_ONE_RUN <= CHECKS.keys()


@pytest.mark.parametrize(("run", "name"), [(run, name) for run in RUNS for name in sorted(FORMATS.keys() & CHECKS)])
def test_the_format_has_the_numbers_of_the_document(run: str, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    view = load_run(run)
    if (run, name) in REFUSED:
        with pytest.raises(UsageError):
            render_bytes(view, name)
        return
    document = json.loads(render_bytes(view, "json"))
    CHECKS[name](view, document, render_bytes(view, name))
