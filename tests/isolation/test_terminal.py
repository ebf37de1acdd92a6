"""A reader under a terminal: it has none itself, yet its report is as wide and colourful, and Ctrl-C ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
import torch
from safetensors.torch import save_file

if sys.platform == "win32":
    pytest.skip("terminals are those of Unix", allow_module_level=True)

import fcntl
import pty
import termios

COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


class Terminal:
    """A program whose controlling terminal is the other end of `master`."""

    def __init__(self, *arguments: str, columns: int = 97) -> None:
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs of a shell inherit that it is ignored
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
            os.execve(sys.executable, [sys.executable, *arguments], environment | {"TERM": "xterm-256color"})
        self.output = b""

    def read_until(self, text: bytes | None, seconds: float = 120) -> None:
        """Until the text was shown; None: until the program has ended."""
        deadline = time.monotonic() + seconds
        while text is None or text not in self.output:
            assert time.monotonic() < deadline, self.output
            try:
                piece = os.read(self.master, 65536)
            except OSError:  # nobody has the terminal open any more
                piece = b""
            if not piece:
                assert text is None, self.output
                return
            self.output += piece

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    def end(self) -> int:
        self.read_until(None)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pid = 0
        return status

    def close(self) -> None:
        os.close(self.master)
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_file({f"layer.{index}.weight": torch.randn(8, 8) for index in range(6)}, tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


READER = """
    import fcntl, json, os, sys, termios, time
    from torchgauge.isolation import Limits, run_isolated

    OWN = os.environ.setdefault("OWN_TERMINAL", os.ttyname(0) if os.isatty(0) else "")

    def open_and_type():
        found = {"terminals": [number for number in range(256) if os.isatty(number)], "opened": [], "typed": []}
        for path in ("/dev/tty", OWN):
            try:
                found["opened"].append(os.open(path, os.O_RDONLY | os.O_NOCTTY))
            except OSError:
                pass
        for number in range(256):
            for character in "id\\n":
                try:
                    fcntl.ioctl(number, termios.TIOCSTI, character.encode())
                    found["typed"].append(number)
                except OSError:
                    pass
        return json.dumps(found | {"prints to one": sys.stdout.isatty()}).encode()

    def sleep():
        print("reading", os.getpid(), file=sys.stderr)
        time.sleep(60)
        return b""
"""


def reader_program(folder: Path, work: str, *, fresh: bool) -> tuple[str, ...]:
    """Arguments of Python that run a function of `READER`; a new interpreter imports it by its name."""
    (folder / "terminal_reader.py").write_text(dedent(READER))
    call = f"run_isolated({work}, limits=Limits(1 << 30, 60), subject='x', needs_fresh_process={fresh})"
    return "-c", f"import sys; sys.path.append({str(folder)!r}); from terminal_reader import *; print({call}.decode())"


@pytest.mark.parametrize("fresh", [False, True])
def test_a_reader_has_no_terminal_to_type_into(fresh: bool, tmp_path: Path, terminals: list[Terminal]) -> None:
    """With TIOCSTI it would put a command into the input of the shell."""
    terminal = Terminal(*reader_program(tmp_path, "open_and_type", fresh=fresh))
    terminals.append(terminal)
    assert terminal.end() == 0, terminal.output
    found = json.loads(terminal.output.decode().strip().splitlines()[-1])
    assert found == {"terminals": [], "opened": [], "typed": [], "prints to one": True}


def test_the_report_is_as_wide_and_colourful_as_the_terminal(model: Path, terminals: list[Terminal]) -> None:
    widest = {}
    for columns in (80, 120):
        terminal = Terminal("-m", "torchgauge", "weights", str(model), columns=columns)
        terminals.append(terminal)
        assert terminal.end() == 0, terminal.output
        assert COLOUR.search(terminal.output)
        lines = COLOUR.sub(b"", terminal.output).decode().splitlines()
        widest[columns] = max(len(line) for line in lines if str(model) not in line)  # a path is not wrapped
        assert widest[columns] <= columns
    assert widest[80] < widest[120]


@pytest.mark.parametrize("fresh", [False, True])
def test_ctrl_c_ends_the_reader_too(fresh: bool, tmp_path: Path, terminals: list[Terminal]) -> None:
    terminal = Terminal(*reader_program(tmp_path, "sleep", fresh=fresh))
    terminals.append(terminal)
    terminal.read_until(b"reading ")
    terminal.read_until(b"\n")
    match = re.search(rb"reading (\d+)", terminal.output)
    assert match is not None
    reader = psutil.Process(int(match[1]))
    began = time.monotonic()
    terminal.type(b"\x03")
    assert terminal.end() != 0
    assert b"KeyboardInterrupt" in terminal.output
    assert not reader.is_running() or reader.status() == psutil.STATUS_ZOMBIE
    assert time.monotonic() - began < 30
