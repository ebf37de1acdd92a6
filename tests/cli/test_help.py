"""The help is true, complete, and within 80 columns."""

from __future__ import annotations

import pytest

from torchgauge.cli import COMMANDS, main
from torchgauge.report import suffixes_of


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help_fits_eighty_columns(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: torchgauge")
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if hasattr(command, "RESULT")])
def test_the_help_lists_the_suffixes_that_are_written(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    reported = capsys.readouterr().out.partition("format by suffix: ")[2].splitlines()[0]
    # Another package may register formats, which no text can name.
    assert {word for word in reported.split() if "." in word} == set(suffixes_of(COMMANDS[name].RESULT))
