"""The examples on the pages for people who come from another tool run unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "migrating"
PRINTED = {
    "fvcore": "#flops",
    "moduleprofiler": r"\begin{tabular}",
    "pytorch_parser": "CNN low",
    "torch_profiling_utils": "Parameters=",
    "torchinfo": "Total params",
    "torchstat": "MemR+W(B)",
}


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
