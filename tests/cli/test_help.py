"""The help is true, complete, and within 80 columns."""

from __future__ import annotations

import shlex

import pytest

from torchgauge.cli import COMMANDS, build_parser, main, with_command
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


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_the_help_has_three_examples_that_parse(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    block = capsys.readouterr().out.partition("examples:\n")[2].partition("\n\n")[0]
    examples = [line.strip() for line in block.splitlines()]

    assert len(examples) == 3
    for example in examples:
        program, *words = shlex.split(example.partition(" >")[0])
        args = build_parser().parse_args(with_command(words))
        assert program == "torchgauge"
        assert not command or args.command == command[0]
