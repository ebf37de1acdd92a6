from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "migrating"


@pytest.mark.parametrize("page", ["torchstat", "moduleprofiler"])
def test_the_code_of_a_page_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, f"{page}.md", "exec"), names)
    assert blocks
    assert ("MemR+W(B)" if page == "torchstat" else r"\begin{tabular}") in capsys.readouterr().out
