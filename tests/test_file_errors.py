"""The edge where files are opened: whatever goes wrong there is a `TorchgaugeError` that names the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import torchgauge as tg
from torchgauge.errors import errors_as_torchgauge


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            KeyError("a"),
            "could not read 'm.pt': KeyError: 'a'. This may be a bug in torchgauge; run again with --debug",
        ),
        (RuntimeError("first\nsecond"), "could not read 'm.pt': RuntimeError: first. This"),
        (StopIteration(), "could not read 'm.pt': StopIteration: no message. This"),
        (RecursionError("maximum"), "could not read 'm.pt': it is nested too deeply"),
        (MemoryError(), "could not read 'm.pt': not enough memory"),
        (PermissionError(13, "Permission denied"), "could not read 'm.pt': Permission denied"),
    ],
)
def test_a_foreign_error_names_the_file_and_keeps_its_cause(error: Exception, message: str) -> None:
    with pytest.raises(tg.TorchgaugeError) as caught, errors_as_torchgauge(Path("m.pt")):
        raise error
    assert str(caught.value).startswith(message)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), tg.TargetError("as it is")])
def test_unrelated_exceptions_pass_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, errors_as_torchgauge("m.pt"):
        raise error
    assert caught.value is error


def test_without_a_file_errors_are_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError), errors_as_torchgauge(None):
        raise KeyError("a")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save({"weight": torch.ones(3, 4)}, tmp_path / "model.pt")
    return tmp_path / "model.pt"


def failing(*_: Any, **__: Any) -> Any:
    raise LookupError("a bug")


@pytest.mark.parametrize("opens", [tg.analyze, tg.scan_weights])
def test_a_bug_in_a_reader_is_one_sentence(opens: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.checkpoint.opening.find_format", failing)
    monkeypatch.setattr("torchgauge.checkpoint.single_file.find_format", failing)
    with pytest.raises(tg.FormatError, match=r"could not read '.*model\.pt': LookupError: a bug. This may be"):
        opens(path)


def test_errors_of_the_callers_function_are_passed_on(path: Path) -> None:
    def on_row(row: Mapping[str, Any]) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        tg.scan_weights(path, on_row=on_row)


def test_a_name_that_no_file_can_have_is_not_a_target(tmp_path: Path) -> None:
    for name in ("x" * 5000, "a\0b", "\udcff.pt"):
        for opens in (tg.analyze, tg.scan_weights, tg.load):
            with pytest.raises(tg.TorchgaugeError):
                opens(name)
