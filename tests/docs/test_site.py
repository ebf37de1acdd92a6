"""The site builds without a warning, and its pages ask no other host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_blocks import ROOT

# What a browser loads by itself; a plain link waits for a reader.
_LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b[^>]*\bhref=\"(?:https?:)?//")
_IN_STYLE = re.compile(r"url\(\s*[\"']?(?:https?:)?//|@import")


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    build(tmp_path)
    assert built_pages(ROOT / "docs", ".md") <= built_pages(tmp_path, ".html")
    outside = [str(page) for page in tmp_path.rglob("*.html") if _LOADED.search(page.read_text(encoding="utf-8"))]
    outside += [str(style) for style in tmp_path.rglob("*.css") if _IN_STYLE.search(style.read_text(encoding="utf-8"))]
    assert not outside
    reference = (tmp_path / "python.html").read_text(encoding="utf-8")
    for name in ("analyze", "scan_weights", "compare", "load", "to_dataframe", "TorchgaugeError"):
        assert re.search(rf'id="torchgauge\.[\w.]*{name}"', reference), name


def build(folder: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


def built_pages(folder: Path, suffix: str) -> set[str]:
    return {str(page.relative_to(folder).with_suffix("")) for page in folder.rglob(f"*{suffix}")}


@pytest.mark.parametrize(
    ("page", "least"), [("docs/architecture.md", 60), ("docs/security.md", 10), ("CONTRIBUTING.md", 5)]
)
def test_the_files_that_a_page_names_exist(page: str, least: int) -> None:
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", (ROOT / page).read_text(encoding="utf-8"))
    assert len(named) >= least
    places = (ROOT / "src" / "torchgauge", ROOT)
    assert [name for name in named if not any((place / name).exists() for place in places)] == []
