"""The examples on the pages for people who come from another tool run unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.report.energy_sample import measured_energy
from tests.report.saved_runs import load_run
from torchgauge.report import render

PAGES = Path(__file__).parents[2] / "docs" / "migrating"
PRINTED = {
    "fvcore": "#flops",
    "moduleprofiler": r"\begin{tabular}",
    "pytorch_parser": "CNN low",
    "torch_profiling_utils": "Parameters=",
    "torchinfo": "Total params",
    "torchstat": "MemR+W(B)",
}
COMMANDS = ("--", "torchgauge ")


def test_every_tool_has_a_page() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == set(PRINTED)


@pytest.mark.parametrize("page", list(PRINTED))
def test_the_code_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pydot")
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, f"{page}.md", "exec"), names)
    assert blocks
    assert PRINTED[page] in capsys.readouterr().out


def test_the_headings_of_the_analyzers_sections_are_printed() -> None:
    views = [*map(load_run, ("cnn", "measured", "weights")), measured_energy()]
    lines = [line.strip() for view in views for line in render(view, "comprehensive").splitlines()]
    text = (PAGES / "pytorch_parser.md").read_text(encoding="utf-8")
    table = text.split("## Where the sections are")[1].split("\n## ")[0]
    cells = [line.split(" | ")[1] for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    named = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell) if not name.startswith(COMMANDS)]
    assert len(cells) > 15
    assert [name for name in named if not any(line.startswith(name) for line in lines)] == []
