"""A few damaged files of every format in every run of the tests; `make fuzz` runs 20,000."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.mutations import json_document, mutate
from tests.fuzz.running import FORMATS, render

ROOT = Path(__file__).parent.parent.parent
RUNS = ROOT / "tests" / "data" / "runs"


@pytest.mark.skipif(sys.platform == "win32", reason="limits of memory are those of POSIX")
def test_damaged_files_are_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--count", "100", "--seed", "tests", "--workers", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run(
        [*command, "--failures", str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert "100 files in" in found.stdout
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", ["cnn", "measured", "weights"])
def test_a_saved_run_that_was_edited_is_refused_when_it_is_loaded_or_rendered(tmp_path: Path, name: str) -> None:
    """What is loaded is rendered: no format meets a value that it cannot show."""
    content, chance = (RUNS / f"{name}.json").read_bytes(), random.Random(name)
    for number in range(60):
        (tmp_path / "run.json").write_bytes(json_document(content, chance))
        output = tmp_path / f"report.{FORMATS[number % len(FORMATS)]}"
        assert render(str(tmp_path / "run.json"), str(output)) in (0, 1, 2)


def test_a_case_is_the_same_for_the_same_seed() -> None:
    files = {"a.json": b'{"a": [1, {"b": "text"}]}', "b.pkl": b"\x80\x04K\x01."}
    one, other = (mutate(files, random.Random("7/3")) for _ in range(2))
    assert one == other
    assert len({str(mutate(files, random.Random(f"7/{number}"))) for number in range(50)}) > 20
