"""Runs the blocks of a page in order, in one folder and one namespace: what a reader would type."""

from __future__ import annotations

import io
import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from tests.docs.blocks import SETUP, Block
from torchgauge.cli import main

PROMPT = "$ "
OUTPUT = "output"
# These change the reader's machine, not the model: they are shown and not run.
INSTALLING = ("pip ", "make ", "git ", "source ", "python -m venv ", "python -m pip ", "pre-commit ")
_ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


class Reader:
    """Someone who follows a page."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__docs__"}
        self.printed = ""

    def follow(self, block: Block, page: str) -> list[tuple[str, str]]:
        """The expected and the actual output of each command of the block."""
        if block.kind == SETUP or (block.kind == "python" and not block.title):
            self.printed = self._execute(block, page)
        elif block.kind == "text" and block.title == OUTPUT:
            return [(block.body, self.printed)]
        elif block.title:
            Path(block.title).write_text(block.body, encoding="utf-8")
        elif block.kind == "bash":
            for command in _commands(block.body):
                self._shell(command, block)
        elif block.kind == "console":
            return [(shown, self._shell(command, block)) for command, shown in dialogue(block.body)]
        return []

    def _execute(self, block: Block, page: str) -> str:
        source = "\n" * (block.line - 1) + block.body
        with captured() as stream:
            exec(compile(source, page, "exec"), self.names)
        return stream.getvalue()

    def _shell(self, command: str, block: Block) -> str:
        if command.startswith(INSTALLING):
            return ""
        tells_status = command.endswith("; echo $?")
        words = shlex.split(command.removesuffix("; echo $?"), comments=True)
        if ">" in words:  # into a file of the reader's home
            words = words[: words.index(">")]
        given = [word for word in words if _ASSIGNMENT.fullmatch(word)] if _ASSIGNMENT.fullmatch(words[0]) else []
        with captured() as stream, environment(dict(word.split("=", 1) for word in given)):
            status = run_command(words[len(given) :])
        assert tells_status or status == block.status, f"{command}: exit status {status}\n{stream.getvalue()}"
        return stream.getvalue() + (f"{status}\n" if tells_status else "")


def run_command(words: list[str]) -> int:
    program, *arguments = words
    if program == "torchgauge":
        return _status(arguments)
    if program == "cat":
        sys.stdout.write("".join(Path(name).read_text(encoding="utf-8") for name in arguments))
        return 0
    if program == "python" and arguments[0].endswith(".py"):
        runpy.run_path(arguments[0], run_name="__main__")
        return 0
    raise AssertionError(f"the tests cannot run '{program}'")


def _status(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as leaving:  # argparse, on --help and on wrong usage
        return leaving.code if isinstance(leaving.code, int) else 1


def dialogue(body: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, shown = part.replace("\\\n", "").partition("\n")
        yield command.strip(), shown


def _commands(body: str) -> Iterator[str]:
    lines = body.replace("\\\n", "").splitlines()
    yield from (line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))


@contextmanager
def captured() -> Iterator[io.StringIO]:
    """Both streams in one, as a terminal shows them."""
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(stream):
        yield stream


@contextmanager
def environment(given: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(given)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
