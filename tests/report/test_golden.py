"""Every format of every saved run against its golden file. A binary format is compared by what it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.report.read_back import page_payload, parquet_content
from tests.report.saved_runs import RUNS, load_run, run_path
from torchgauge.errors import UsageError
from torchgauge.report import FORMATS, render_bytes

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(FORMATS)
CASES = [(run, name) for run in RUNS for name in NAMES]


def golden_path(run: str, name: str) -> Path:
    """The document itself is the saved run."""
    if name == "json":
        return run_path(run)
    suffix = FORMATS[name].suffix or f".{name}.txt"
    shown = f"{suffix}.json" if name == "html" or name.endswith("parquet") else suffix
    return GOLDEN / run / (f"report{shown}" if shown.startswith(".") else shown)


def golden_text(run: str, name: str) -> str:
    try:
        data = render_bytes(load_run(run), name)
    except UsageError as refusal:
        return f"refused: {refusal}\n"
    if name == "html":
        return _rows(page_payload(data.decode()))
    return _rows(parquet_content(data)) if name.endswith("parquet") else data.decode()


def _rows(parts: dict[str, Any]) -> str:
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in parts.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


@pytest.mark.parametrize(("run", "name"), CASES)
def test_the_format_equals_its_golden_file(run: str, name: str, request: pytest.FixtureRequest) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    text, path = golden_text(run, name), golden_path(run, name)
    if request.config.getoption("--regenerate"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    assert text == path.read_bytes().decode()


@pytest.mark.parametrize("run", RUNS)
def test_no_golden_file_is_left_from_a_format_that_is_gone(run: str, request: pytest.FixtureRequest) -> None:
    expected = {golden_path(run, name) for name in NAMES} - {run_path(run)}
    found = set((GOLDEN / run).iterdir())
    if request.config.getoption("--regenerate"):
        for stale in found - expected:
            stale.unlink()
        found &= expected
    assert found == expected


def test_a_rendering_of_a_loaded_run_does_not_change_what_it_was_rendered_from() -> None:
    first, second = load_run("measured"), load_run("measured")
    for name in NAMES:
        if name not in ("weights.jsonl", "against.csv"):
            assert render_bytes(first, name) == render_bytes(second, name)
    assert first.to_dict() == second.to_dict()
