"""`torchgauge check`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch

from torchgauge.cli import main

DANGER = "Dangerous pickle: do not load this file; unpickling it would call"
# Small enough to be measured in no time.
NET = "from torch import nn\nclass Net(nn.Sequential):\n    def __init__(self): super().__init__(nn.Linear(4, 2))\n"


class Command:
    """Its pickle runs a shell command."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch canary",)


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "nets.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return "nets.py:Net"


def test_within_the_budget_the_status_is_0(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", net, "--max", "params=10", "--max", "macs=1k", "--input", "3x4"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "Budget of nets.py:Net"
    assert [line.split()[-1] for line in out.splitlines()[2:4]] == ["within", "within"]


def test_a_broken_budget_is_3_with_the_modules_that_break_it(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", net, "--max", "params=9", "--input", "3x4"]) == 3
    out = capsys.readouterr().out
    assert "params is 1 over its limit; the largest contributors:" in out
    assert out.splitlines()[-1].split() == ["0", "Linear", "1", "10", "100.0", "%"]


def test_a_dangerous_pickle_fails_the_check_unless_it_is_allowed(
    net: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    torch.save({"weight": torch.ones(2, 3), "extra": Command()}, "evil.pt")
    assert main(["check", "evil.pt", "--max", "params=9", "--quiet"]) == 3
    assert capsys.readouterr() == ("", f"torchgauge: warning: evil.pt: {DANGER} posix.system\n")
    assert main(["check", "evil.pt", "--max", "params=9", "--allow-unsafe-file"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"evil.pt: {DANGER} posix.system"
    assert DANGER in err


@pytest.mark.parametrize("command", ["analyze", "weights", "compare"])
def test_a_dangerous_pickle_is_the_first_line_of_every_report_and_on_stderr(
    command: str, net: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    torch.save({"weight": torch.ones(2, 3), "extra": Command()}, "evil.pt")
    targets = ["evil.pt", "evil.pt"] if command == "compare" else ["evil.pt"]
    assert main([command, *targets]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].endswith(f"{DANGER} posix.system")
    assert err.startswith(f"torchgauge: warning: evil.pt: {DANGER} posix.system\n")
    assert not Path("canary").exists()


def test_a_figure_that_is_not_known_is_1(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", net, "--max", "stored_bytes=1G", "--input", "3x4", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["targets"][0]["verdicts"][0]["state"] == "unknown"
    assert err == "torchgauge: error: nets.py:Net: stored_bytes is not known: the model is not stored in a file\n"


def test_unknown_figures_are_also_reported_on_stderr(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", net, "--max", "stored_bytes=1G", "--input", "3x4"]) == 1
    out, err = capsys.readouterr()
    assert "unknown" in out
    assert err == "torchgauge: error: nets.py:Net: stored_bytes is not known: the model is not stored in a file\n"


def test_a_target_that_fails_leaves_the_others_their_verdicts_and_ci_its_file(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "gone.pt", net, "--max", "params=10", "--input", "3x4", "-o", "b.junit.xml", "--json"]) == 1
    out, err = capsys.readouterr()
    first, second = json.loads(out)["targets"]
    assert (first["failure"], first["exit_status"]) == ("there is no file 'gone.pt'", 1)
    assert [verdict["state"] for verdict in second["verdicts"]] == ["within"]
    assert "torchgauge: error: gone.pt: not checked: there is no file 'gone.pt'" in err.splitlines()
    assert {key: ET.parse("b.junit.xml").getroot().get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "2", "failures": "0", "errors": "1",
    }  # fmt: skip
    assert main(["check", "gone.pt", net, "--max", "params=9", "--input", "3x4", "--quiet"]) == 3


def test_a_limit_on_time_is_measured(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", net, "--max", "time_s=10min", "--input", "3x4", "--budget", "0.1", "--json"]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)["targets"][0]["verdicts"]
    assert 0 < verdict["value"] < 600


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nets.py:Net", "--max", "colour=3"], "no figure 'colour'"),
        (["nets.py:Net", "--max", "params"], "is not a limit"),
        (["nets.py:Net", "--max", "params=1e400"], "cannot be 1e400"),
        (["nets.py:Net", "--max", "params=nan"], "is not a number"),
        (["nets.py:Net", "--max", "params=-1"], "is not a number"),
        (["nets.py:Net"], "has no limits"),
        ([], "no target: name one"),
        (["nets.py:Net", "--max", "params=1", "-o", "b.html"], "the name must end in one of"),
    ],
)
def test_a_wrong_request_is_2(options: list[str], message: str, net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_projects_table_names_targets_and_their_inputs(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text(
        '[tool.torchgauge.budgets]\nmacs = 24\n[tool.torchgauge.budgets."nets.py:Net"]\ninput = "3x4"\nparams = 10\n'
    )
    named = ["check", "--config", "pyproject.toml"]
    assert main(named) == 0
    assert main([*named, "--max", "params=9"]) == 3, "the command line goes before the table"
    assert main(["check", net, "--input", "4x4"]) == 3, "with more rows there are more MACs"


def test_junit_and_annotations_for_ci(
    net: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert main(["check", net, "--max", "params=9", "--input", "3x4", "-o", "budget.junit.xml", "--quiet"]) == 3
    assert ET.parse("budget.junit.xml").getroot().get("failures") == "1"
    assert capsys.readouterr().out.startswith("::error file=nets.py,title=nets.py%3ANet%3A params::params is 10")


def test_annotations_leave_json_alone(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", net, "--max", "params=9", "--input", "3x4", "--json", "--github"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["exit_status"] == 3
    assert err.startswith("::error ")


def test_the_help_lists_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "3 a budget is broken" in capsys.readouterr().out


def test_a_figure_may_grow_by_a_share_of_a_saved_runs(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["nets.py:Net", "--input", "100x4", "-o", "main.json", "--quiet"])
    same = ["check", net, "--input", "100x4", "--against", "main.json"]
    larger = ["check", net, "--input", "101x4", "--against", "main.json"]

    assert main([*same, "--max-increase", "macs=0%"]) == 0
    assert main([*larger, "--max-increase", "macs=1%"]) == 0
    capsys.readouterr()
    assert main([*larger, "--max-increase", "macs=0.5%", "--max-increase", "params=5"]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "macs 808 804 (main.json 800 + 0.5%)" in out
    assert "params 10 15 (main.json 10 + 5)" in out
    assert "macs is 4.00 over its limit" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-increase", "macs=1%"], "add --against RUN.json"),
        (["--against", "main.json"], "add --max-increase KEY=AMOUNT"),
        (["--against", "main.json", "--max-increase", "macs"], "write it like macs=1%"),
        (["--against", "main.json", "--max-increase", "macs=-1%"], "is not a percentage"),
        (["--against", "main.json", "--max-increase", "wisdom=1%"], "no figure 'wisdom'"),
    ],
)
def test_a_wrong_increase_is_2(options: list[str], message: str, net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", net, *options]) == 2
    assert message in capsys.readouterr().err


def test_a_figure_that_the_other_run_lacks_is_1(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["nets.py:Net", "--input", "3x4", "-o", "main.json", "--quiet"])
    capsys.readouterr()

    assert main(["check", net, "--against", "main.json", "--max-increase", "time_s=5%"]) == 1
    assert "'main.json' has no time_s: it was not measured" in capsys.readouterr().err
