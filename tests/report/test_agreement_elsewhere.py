"""The numbers of the document in what `test_agreement` does not reach: runs with estimates, folded blocks, unknown work
and packed tensors; every figure of a node and a parameter in the full text; budgets and comparisons."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.report.energy_sample import estimated_energy, measured_energy
from tests.report.measured_sample import measured_view
from tests.report.sample import sample_view
from tests.report.saved_runs import load_run
from tests.report.stored_sample import stored_view
from tests.report.test_agreement import CHECKS
from torchgauge.facts import Row, View
from torchgauge.report import Options, render, render_bytes, visible
from torchgauge.report.budgets import KEYS, PEAKS, check_view, limits
from torchgauge.report.comparison import FIGURES, compare_views, comparison_document, flat_modules
from torchgauge.units import format_bytes, format_exact, format_joules, format_seconds, format_value

SAMPLES: dict[str, Callable[[], View]] = {
    "counted": sample_view,
    "measured": measured_view,
    "energy": measured_energy,
    "estimated": estimated_energy,
    "stored": stored_view,
}
# Those that give plain numbers.
EXACT = ("json", "jsonl", "xml", "csv", "ops.csv", "parquet", "ops.parquet", "weights.csv", "weights.parquet")


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("sample", SAMPLES)
def test_the_format_has_the_numbers_of_the_document(sample: str, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    view = SAMPLES[sample]()
    document = json.loads(render_bytes(view, "json"))
    CHECKS[name](view, shown(document) if name == "xml" else document, render_bytes(view, name))


def shown(value: Any) -> Any:
    """With names as XML can hold them."""
    if isinstance(value, dict):
        return {visible(key): shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    return visible(value) if isinstance(value, str) else value


def details(text: str, title: str) -> Iterator[dict[str, str]]:
    """By label what is said of each node or parameter."""
    for entry in re.split(rf"^{title}", text, flags=re.MULTILINE)[1:]:
        yield dict(re.findall(r"^  (\S+(?:,? \S+)*?)  +(\S.*)$", entry.split("\n\n")[0], re.MULTILINE))


def memory_text(row: Row) -> str:
    moved = f"{format_bytes(row.bytes_read)} read, {format_bytes(row.bytes_written)} written"
    intensity = "" if row.arithmetic_intensity is None else f", {format_value(row.arithmetic_intensity)} FLOPs per byte"
    return f"{moved}{intensity}; {format_bytes(row.live_bytes)} of activations alive"


@pytest.mark.parametrize("run", ["cnn", "measured"])
def test_a_node_of_the_full_text_has_the_figures_of_its_row(run: str) -> None:
    view = load_run(run)
    found = list(details(render(view, "comprehensive", Options(width=1000)), r"Node \d+: "))
    assert len(found) == len(view.ops)
    for row, reported in zip(view.ops, found, strict=True):
        assert reported["work"] == f"{format_exact(row.macs)} MACs, {format_exact(row.flops)} FLOPs"
        assert reported["memory"] == memory_text(row)
        assert ("time" in reported, "energy" in reported) == (row.time_s is not None, row.energy_j is not None)
        assert reported.get("time", "").startswith(
            "" if row.time_s is None else f"{format_seconds(row.time_s)}, measured"
        )
        assert reported.get("energy", "") == (
            "" if row.energy_j is None else f"{format_joules(row.energy_j)}, measured"
        )


def test_a_parameter_of_the_full_text_has_the_figures_of_its_row() -> None:
    view = load_run("weights")
    found = list(details(render(view, "comprehensive", Options(width=1000)), "Parameter: "))
    assert len(found) == len(view.weights)
    for row, reported in zip(view.weights, found, strict=True):
        assert reported["elements"] == f"{format_exact(row.elements)} in {format_bytes(row.bytes)}"
        assert reported["mean, std"] == f"{format_value(row['mean'])}, {format_value(row['std'])}"
        assert reported["range"] == f"{format_value(row['min'])} … {format_value(row['max'])}"
        assert reported["norms"].startswith(f"L1 {format_value(row['l1'])}, L2 (Frobenius) {format_value(row['l2'])}")


@pytest.mark.parametrize("run", ["cnn", "measured", "weights"])
def test_a_budget_judges_the_totals(run: str) -> None:
    view = load_run(run)
    totals = json.loads(render(view, "json"))["totals"]
    found = check_view(view, limits(dict.fromkeys(KEYS, 0)))
    assert {verdict.limit.key: verdict.value for verdict in found.verdicts} == totals
    for verdict in found.broken:
        additive = [entry.value for entry in verdict.blamed]
        assert sum(additive) <= totals[verdict.limit.key] * 1.0001 or verdict.limit.key in PEAKS


def test_a_comparison_has_the_figures_of_its_sides() -> None:
    runs = [load_run("cnn"), load_run("measured")]
    documents: list[dict[str, Any]] = [json.loads(render(run, "json")) for run in runs]
    compared = compare_views(runs)
    for row in comparison_document(compared)["totals"]:
        if row["key"] in KEYS and row["key"] not in ("energy_j", "time_s"):
            assert row["values"] == [document["totals"][row["key"]] for document in documents], row["key"]
    for side, document in zip("AB", documents, strict=True):
        expected = {row["path"]: row for row in document["modules"]}
        shown = [row for row in flat_modules(compared) if row[f"path_{side}"] is not None]
        assert {row[f"path_{side}"] for row in shown} == expected.keys()
        for row in shown:
            module = expected[row[f"path_{side}"]]
            assert [row[f"{key}_{side}"] for key in FIGURES] == [module[key] for key in FIGURES]
