"""Colours, widths and progress on different kinds of terminals."""

from __future__ import annotations

import io
import re
import time
from contextlib import redirect_stderr

import pytest

from torchgauge import progress
from torchgauge.cli import main
from torchgauge.report import Span, cell_width, write_lines

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Stands for stderr; work takes long at once."""
    stream = Terminal()
    monkeypatch.setattr(progress, "SPINNER_DELAY_S", 0.0)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


def wait_for(stream: Terminal, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in stream.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_long_work_is_named_and_its_line_goes_away(terminal: Terminal) -> None:
    with redirect_stderr(terminal), progress.stage("importing torch"):
        wait_for(terminal, "importing torch …")
    assert "importing torch …" in terminal.getvalue()
    assert not terminal.getvalue().rpartition("\x1b[2K")[2].strip("\r\n\x1b[?25h1A")


def test_a_name_is_not_markup(terminal: Terminal) -> None:
    with redirect_stderr(terminal), progress.stage("writing [/a]\x1b[2J.json"):
        wait_for(terminal, ".json …")
    assert "writing [/a]" in terminal.getvalue()
    assert "\x1b[2J" not in terminal.getvalue()


def test_short_work_is_not_mentioned(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SPINNER_DELAY_S", 60.0)
    with redirect_stderr(terminal), progress.stage("reading"):
        pass
    assert "reading" not in terminal.getvalue()


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with redirect_stderr(terminal), progress.stage("analysing") as report_progress:
        wait_for(terminal, "analysing …\n")
        report_progress(1, 2, "a part")
    with redirect_stderr(terminal), progress.steps("measuring") as report_progress:
        report_progress(0, 2, "latency")
        report_progress(1, 2, "memory")
    assert terminal.getvalue() == "analysing …\nmeasuring: latency (1 of 2) …\nmeasuring: memory (2 of 2) …\n"


def test_without_a_terminal_there_is_no_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.stage("analysing"), progress.steps("measuring") as report_progress:
        report_progress(0, 1, "latency")
    assert capsys.readouterr().err == ""


def test_colours_respect_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    lines = [(Span("Modules", "heading"), Span(" a warning", "warning"))]
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = Terminal()
    write_lines(lines, coloured)
    assert COLOUR.search(coloured.getvalue())
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    write_lines(lines, plain)
    assert not COLOUR.search(plain.getvalue())
    assert ESCAPE.sub("", plain.getvalue()) == "Modules a warning\n"


def test_a_dumb_terminal_gets_no_escape_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    write_lines([(Span("Modules", "heading"),)], stream)
    assert stream.getvalue() == "Modules\n"


@pytest.mark.parametrize("command", [["demo"], ["system"]])
def test_80_columns_are_enough(
    command: list[str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("folder"))
    monkeypatch.setenv("COLUMNS", "80")
    assert main(command) == 0
    captured = capsys.readouterr()
    assert not ESCAPE.search(captured.out)
    assert [line for line in captured.out.splitlines() if cell_width(line) > 80] == []
