from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from torchgauge.compat.torchstat.__main__ import main

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)

    def forward(self, x):
        return self.conv(x)

class Refusing(Net):
    def forward(self, x):
        assert x.shape[1] == 4, "four channels"

class Interrupted(Net):
    def forward(self, x):
        raise KeyboardInterrupt
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    path = tmp_path / "net.py"
    path.write_text(NET, encoding="utf-8")
    return str(path)


def test_the_command_prints_the_report(net: str) -> None:
    command = [sys.executable, "-m", "torchgauge.compat.torchstat", "-f", net, "-m", "Net", "-s", "3x6x6"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"Total Flops: {4 * 4 * (27 * 2 + 2)}Flops" in done.stdout


def test_the_package_installs_the_command(net: str) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, function = project["project"]["scripts"]["torchstat"].partition(":")
    # What an installer writes.
    script = f"import sys; from {module} import {function}; sys.argv[0] = 'torchstat'; sys.exit({function}())"
    command = [sys.executable, "-c", script, "-s", "3x6x6", "-m", "Net", net]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"Total Flops: {4 * 4 * (27 * 2 + 2)}Flops" in done.stdout


def test_the_size_is_that_of_imagenet_where_not_given(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--file", net, "--model", "Net"]) == 0
    assert "3 224 224" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-m", "Missing"], "there is no 'Missing'"),
        (["-m", "Net", "-s", "4x6x6"], "channels"),
        (["-m", "Refusing"], "the model failed: AssertionError: four channels"),
        (["-m", "Net", "-f", "absent.py"], "there is no file"),
    ],
)
def test_an_impossible_request_is_one_message(
    net: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-f", net, *arguments]) == 1
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_an_interrupted_run_says_nothing(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-f", net, "-m", "Interrupted"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_closed_pipe_is_not_an_error(net: str) -> None:
    command = [sys.executable, "-m", "torchgauge.compat.torchstat", "-f", net, "-m", "Net", "-s", "3x6x6"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(timeout=120) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-f", "net.py"],
        ["-f", "net.py", "-m", "Net", "-s", "3xa"],
        ["-m", "Net"],
        ["-f", "a.py", "b.py", "-m", "N"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
