"""A format is one file: writers, help and documentation find it there."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests.extended import SOURCE, copy_package, run_with
from tests.report.sample import sample_view
from torchgauge.report import ANALYSIS, FORMATS, OTHERS, SCAN, find_format, render, suffixes_of

FILE = """
from torchgauge.facts import View
from torchgauge.report import Options, renderer


@renderer(
    "names",
    suffix=".names",
    contents="the paths of the modules (one per line)",
    note="paths",
    scans=(".tensors",),
)
def render_names(view: View, options: Options) -> str:
    return "\\n".join(row.path for row in view.modules)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extended")
    (copy_package(folder) / "report" / "formats" / "names.py").write_text(FILE, encoding="utf-8")
    (folder / "run.json").write_text(render(sample_view(), "json"), encoding="utf-8")
    return folder


def test_a_new_file_is_a_new_format(package: Path) -> None:
    written = package / "a.names"
    run_with(package, "-c", "import sys, torchgauge; torchgauge.load(sys.argv[1]).save(sys.argv[2])",
             str(package / "run.json"), str(written))  # fmt: skip
    assert written.read_text(encoding="utf-8").splitlines() == [row.path for row in sample_view().modules]


def test_the_help_and_the_documentation_name_it(package: Path) -> None:
    assert ".names (paths)" in " ".join(run_with(package, "-m", "torchgauge", "analyze", "--help").split())
    assert ".tensors (paths)" in " ".join(run_with(package, "-m", "torchgauge", "weights", "--help").split())
    table = run_with(package, "-c", "from tests.docs.tables import formats_table; print(formats_table('analysis'))")
    assert "| `.names` | the paths of the modules (one per line) |" in table


def test_declared_and_registered_names_agree() -> None:
    """Decorators are read from the text of the files: every one of them, and as Python would."""
    texts = [path.read_text(encoding="utf-8") for path in (SOURCE / "report" / "formats").glob("*.py")]
    decorated = sum(text.count("\n@renderer(") for text in texts)
    homes = [format.home for format in FORMATS.values() if format.home]
    assert len(homes) == decorated
    for home in (*homes, *(format.home for formats in OTHERS.values() for format in formats if format.home)):
        module, _, function = home.partition(":")
        assert callable(getattr(import_module(f"torchgauge.report.{module}"), function)), home


@pytest.mark.parametrize("result", [ANALYSIS, SCAN, *OTHERS])
def test_a_suffix_of_a_result_names_its_format(result: str) -> None:
    for suffix, format in suffixes_of(result).items():
        assert find_format(f"dir/RUN{suffix}".upper(), result) is format
