"""Ctrl-C at any time gives no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

# Ctrl-C at the moment when a module is imported.
AT_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
program, module, *arguments = sys.argv[1:]
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000): pass
sys.meta_path.insert(0, Interrupting())
sys.argv = [program, *arguments]
from torchgauge.cli import main
print("imported", flush=True)
sys.exit(main())
"""
PROGRAM = str(Path(sys.executable).with_name("torchgauge"))


def interrupted(module: str, *arguments: str, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AT_IMPORT, program, module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def model(tmp_path: Path) -> str:
    torch.save({"weight": torch.ones(3, 3)}, tmp_path / "model.pt")
    return str(tmp_path / "model.pt")


@pytest.mark.parametrize(
    "module",
    [
        "torchgauge.cli.main",
        "argparse",
        "torchgauge.cli.weights",
        "torchgauge.report.registry",
        "torchgauge.cli.system",
    ],
)
def test_while_the_program_imports_its_commands(module: str) -> None:
    done = interrupted(module, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("module", ["torchgauge.analysis.isolated", "torchgauge.checkpoint.opening", "numpy"])
def test_while_a_command_imports_what_it_needs(module: str, model: str) -> None:
    done = interrupted(module, "weights", model)
    assert (done.returncode, done.stdout, done.stderr) == (130, "imported\n", "")


def test_a_program_that_imports_the_command_line_keeps_its_own_handler() -> None:
    done = interrupted("torchgauge.cli.weights", "--version", program="/usr/bin/other")
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("command", [[PROGRAM], [sys.executable, "-m", "torchgauge"]])
def test_at_any_moment_of_a_run(command: list[str], model: str) -> None:
    """Until the first file of the command line has run, a traceback is Python's own."""
    if not Path(command[0]).exists():
        pytest.skip("the console script is not installed")
    for delay_ms in range(0, 200, 20):
        with subprocess.Popen(
            [*command, "weights", model], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        ) as process:  # fmt: skip
            time.sleep(delay_ms / 1000)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate()
        assert "cli/main.py" not in err, f"after {delay_ms} ms"
        assert "Exception ignored" not in err
