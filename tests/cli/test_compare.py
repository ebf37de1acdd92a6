"""`torchgauge compare`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import torchgauge as tg
from torchgauge.cli import main

NETS = """
from torch import nn
class Small(nn.Linear):
    def __init__(self): super().__init__(4, 2)
class Large(nn.Linear):
    def __init__(self): super().__init__(4, 6); print("hello")
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def test_two_targets_come_side_by_side(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "nets.py:Small", "nets.py:Large", "--input", "3x4"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Comparison\n")
    assert "hello" not in out, "output of the model is not part of the report"
    assert "hello" in err
    figures = dict(line.split(maxsplit=1) for line in out.splitlines() if line.startswith(("Parameters", "MACs")))
    assert figures["Parameters"].split() == ["10", "30", "+200.0", "%"]
    assert figures["MACs"].split() == [str(3 * 8), str(3 * 24), "+200.0", "%"]
    assert max(map(len, out.splitlines())) <= 80


def test_saved_runs_are_read_not_analysed(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nets.py:Small", "--input", "3x4", "--quiet", "-o", "small.json"]) == 0
    assert main(["compare", "small.json", "nets.py:Large", "--input", "5x4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert next(row["values"] for row in document["totals"] if row["key"] == "macs") == [3 * 8, 5 * 24]
    assert document["differing"] == ["Inputs"]


def test_every_format_is_written(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["c.html", "c.json", "c.md", "c.csv", "c.txt"]
    options = [word for name in names for word in ("-o", name)]
    assert main(["compare", "nets.py:Small", "nets.py:Large", "--input", "3x4", "--quiet", *options]) == 0
    assert capsys.readouterr().out == ""
    assert all((nets / name).stat().st_size for name in names)


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["nets.py:Small"], 2, "two targets or more"),
        (["a", "b", "--columns", "path"], 2, "'path' cannot be compared"),
        (["a", "b", "--sort", "colour"], 2, "no column 'colour'"),
        (["a", "b", "-o", "c.tex"], 2, "the name must end in one of"),
        (["a", "b", "-o", "c.ops.csv"], 2, "the name must end in one of"),
        (["a", "b", "-o", "no/such/c.md"], 1, "there is no folder"),
        (["nets.py:Small", "missing.json"], 1, "there is no file 'missing.json'"),
    ],
)
def test_a_wrong_request_is_reported(
    options: list[str], status: int, message: str, nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *options, "--input", "3x4"]) == status
    assert message in capsys.readouterr().err


def test_saved_runs_are_compared_and_checked_without_torch(nets: Path) -> None:
    assert main(["nets.py:Small", "--input", "3x4", "--quiet", "-o", "small.json"]) == 0
    code = """
import sys
sys.modules["torch"] = None
from torchgauge.cli import main
assert main(["compare", "small.json", "small.json", "-o", "c.html", "--quiet"]) == 0
assert main(["check", "small.json", "--max", "params=1", "--quiet"]) == 3
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=nets, capture_output=True)


def test_the_root_is_called_by_its_type_where_names_are_cut(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (nets / "long.py").write_text(
        "from torch import nn\n"
        "class AModelWithANameThatTakesALotOfRoom(nn.Sequential):\n"
        "    def __init__(self): super().__init__(nn.Linear(4, 2))\n"
        "def wider(): return nn.Sequential(nn.Linear(4, 3))\n"
    )
    target = "long.py:AModelWithANameThatTakesALotOfRoom"
    assert main(["compare", target, "long.py:wider", "--input", "3x4", "--columns", "params,macs,flops"]) == 0
    table = capsys.readouterr().out.split("Modules that differ\n")[1]
    assert "AModelWithANameThatTakesALotOfRoom" in table
    assert "itself" not in table


def test_a_saved_run_as_a_target_names_the_commands_that_take_it(
    nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nets.py:Small", "--input", "3x4", "--quiet", "-o", "small.json"]) == 0
    assert main(["small.json"]) == 1
    assert "torchgauge compare" in capsys.readouterr().err


def test_every_stage_of_a_comparison_is_announced(nets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[tuple[str, bool | None]] = []

    @contextmanager
    def note(name: str, *, shown: bool | None = None) -> Iterator[None]:
        reported.append((name, shown))
        yield

    assert main(["nets.py:Small", "--input", "3x4", "--quiet", "-o", "small.json"]) == 0
    monkeypatch.setattr("torchgauge.analysis.comparison.stage", note)
    tg.compare("small.json", nets / "small.json", progress=True)
    assert reported == [("reading small.json", True), ("reading small.json", True), ("comparing", True)]
