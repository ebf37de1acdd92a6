"""Completion scripts: bash runs its own, the others name every command and option."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from torchgauge.cli import COMMANDS, build_parser, command_parsers, main

BASH = shutil.which("bash")


def completion_script(shell: str) -> str:
    with redirect_stdout(StringIO()) as out:
        assert main(["completion", shell]) == 0
    return out.getvalue()


def complete(words: list[str], folder: Path) -> list[str]:
    """The completions that bash offers for the last word."""
    assert BASH is not None
    quoted = " ".join(f"'{word}'" for word in ["torchgauge", *words])
    program = f"""{completion_script("bash")}
COMP_WORDS=({quoted}); COMP_CWORD={len(words)}
_torchgauge
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run([BASH, "--norc", "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return sorted(line for line in done.stdout.splitlines() if line)


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["we"], ["weights"]),
        (["an"], ["analyze"]),
        (["mo"], ["model a.pt", "model b.pt"]),
        (["ti"], ["timm:"]),
        (["weights", ""], ["model a.pt", "model b.pt"]),
        (["weights", "--res"], ["--resume"]),
        (["--quiet", "weights", "--res"], ["--resume"]),
        (["model a.pt", "--profile-"], ["--profile-level"]),
        (["model a.pt", "--profile-level", ""], ["latency", "modules", "ops"]),
        (["model a.pt", "--inference", "mo"], ["model a.pt", "model b.pt"]),
        (["model a.pt", "--batch", ""], []),
        (["check", "--mode", "t"], ["train"]),
        (["analyze", "x", "-o", "model b"], ["model b.pt"]),
        (["compare", "model a.pt", "model b"], ["model b.pt"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["system", ""], []),
    ],
)
def test_bash_completes(words: list[str], offered: list[str], tmp_path: Path) -> None:
    for name in ("model a.pt", "model b.pt"):
        (tmp_path / name).touch()
    assert complete(words, tmp_path) == offered


@pytest.mark.parametrize(("shell", "lead"), [("bash", "--"), ("zsh", "--"), ("fish", "-l ")])
def test_every_command_and_option_is_in_the_script(shell: str, lead: str) -> None:
    script = completion_script(shell)
    for name, parser in command_parsers(build_parser()).items():
        assert name in script
        for option in parser._option_string_actions:
            if option.startswith("--"):
                assert lead + option[2:] in script


def test_the_command_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (completion_script("zsh"), "")
    assert out.startswith("#compdef torchgauge\n")
    assert all(f"'{name}:" in out for name in COMMANDS)
