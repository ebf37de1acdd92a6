"""Outputs that cannot be written: reported in one line, before the work if possible, and nothing is half-written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.saved_runs import run_path
from torchgauge.cli import main

COMMANDS = {
    "analyze": ["analyze", "gone.py:Net"],
    "weights": ["weights", "gone.safetensors"],
    "compare": ["compare", "gone.json", "gone.json"],
    "check": ["check", "gone.json", "--max", "params=1"],
    "system": ["system"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_folder_is_reported_before_the_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The targets are missing too: who began with the work would say so."""
    monkeypatch.chdir(tmp_path)
    assert main([*COMMANDS[command], "-o", "no/such/r.JSON"]) == 1
    assert capsys.readouterr().err == "torchgauge: error: cannot write 'no/such/r.JSON': there is no folder 'no/such'\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_is_a_folder_is_reported_before_the_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.json").mkdir()
    assert main([*COMMANDS[command], "-o", "r.json"]) == 1
    assert capsys.readouterr().err == "torchgauge: error: cannot write 'r.json': it is a folder\n"
    assert list(Path("r.json").iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_under_stdout_is_one_line_on_stderr(options: list[str]) -> None:
    run = str(run_path("cnn"))
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "torchgauge", "compare", run, run, *options]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "torchgauge: error: input or output failed: [Errno 28] No space left on device\n"
