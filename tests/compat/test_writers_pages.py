"""The examples on the pages for people who come from torchinfo, fvcore and Torch Profiling Utils run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "migrating"


@pytest.mark.parametrize("page", ["torchinfo", "fvcore", "torch_profiling_utils"])
def test_the_examples_of_the_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydot")
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(compile(block, f"{page}.md", "exec"), {})
