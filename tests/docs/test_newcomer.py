"""The tutorial in separate processes without the developer's environment, as after a fresh install."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import Block
from tests.docs.comparing import matches
from tests.docs.running import INSTALLING, OUTPUT, dialogue
from tests.docs.test_blocks import BLOCKS, WIDTH

BIN = Path(sys.executable).parent


@pytest.mark.slow
def test_a_newcomer_gets_what_the_tutorial_shows(tmp_path: Path) -> None:
    blocks = BLOCKS["docs/tutorial.md"]
    for block in blocks:
        if block.title and block.title != OUTPUT:
            (tmp_path / block.title).write_text(block.body, encoding="utf-8")
        elif block.kind == "console":
            _check(block, tmp_path)
    _check_python(blocks, tmp_path)


def _check(block: Block, folder: Path) -> None:
    for command, shown in dialogue(block.body):
        if not command.startswith(INSTALLING):
            given = _run(["bash", "-c", command], folder)
            assert matches(shown, given, by_shape="shape" in block.remarks), f"{command}\n{given}"


def _check_python(blocks: list[Block], folder: Path) -> None:
    """One session: its blocks in order, then what they print."""
    source = "\n".join(block.body for block in blocks if block.kind == "python" and not block.title)
    shown = "".join(block.body for block in blocks if block.title == OUTPUT)
    (folder / "session.py").write_text(source, encoding="utf-8")
    assert matches(shown, _run(["python", "session.py"], folder))


def _run(command: list[str], folder: Path) -> str:
    environment = {"PATH": f"{BIN}{os.pathsep}{os.defpath}", "HOME": str(folder), "COLUMNS": WIDTH}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}"
    return done.stdout
