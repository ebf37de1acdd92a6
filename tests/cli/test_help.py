"""What `--help` says: true, complete, and within 80 columns."""

from __future__ import annotations

import pytest

from torchgauge.cli import analyze, check, compare, demo, main, system, weights
from torchgauge.cli.main import COMMANDS
from torchgauge.report import known_suffixes
from torchgauge.report.comparison.saving import SUFFIXES as COMPARED
from torchgauge.report.saving import WEIGHT_FORMATS


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


@pytest.mark.parametrize(
    ("told", "written"),
    [
        (analyze.SUFFIXES, known_suffixes()),
        (demo.SUFFIXES, known_suffixes()),
        (weights.SUFFIXES, WEIGHT_FORMATS),
        (compare.SUFFIXES, COMPARED),
        (check.SUFFIXES, [".junit.xml", ".xml", ".json", ".txt"]),
        (system.SUFFIXES, system.FORMS),
    ],
)
def test_the_suffixes_told_are_those_that_are_written(told: str, written: list[str]) -> None:
    named = {word.strip(",") for word in told.split() if "." in word}
    # A package of others may bring formats of its own, which no text can name.
    assert named == set(written)
