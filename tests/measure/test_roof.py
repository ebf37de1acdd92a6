"""A profile measures what the device can do, the first time on a machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.hardware import cpu_name, remembered

# The other tests replace it by a function that measures nothing.
ensure_roof = resolve_name("torchgauge.analysis.measurement:ensure_roof")


@pytest.fixture(autouse=True)
def fresh_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing is remembered; the list has the devices that were measured."""
    measured: list[str] = []

    def probe(device: str, parts: Sequence[str]) -> Iterator[str]:
        measured.append(device)
        for part in parts:
            yield json.dumps({"begin": part})
            yield json.dumps({"end": part, "rate": 1e12})

    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path))
    monkeypatch.setattr("torchgauge.measure.calibrate.run_probe", probe)
    monkeypatch.setattr("psutil.getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr("torchgauge.analysis.measurement.ensure_roof", ensure_roof)
    return measured


def profiled(**options: object) -> tg.Analysis:
    return tg.analyze(nn.Linear(8, 8), input_size=(4, 8), profile=True, budget_s=0.02, threads=1, **options)  # type: ignore[arg-type]


def test_the_first_profile_measures_the_roof_announces_it_and_remembers_it(
    fresh_machine: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = profiled()
    [line] = [line for line in capsys.readouterr().err.splitlines() if "roof" in line]
    assert line.startswith("torchgauge: measuring the roof of ")
    assert str(tmp_path) in line
    assert fresh_machine == ["cpu"]
    assert remembered(cpu_name()) is not None
    assert any(op.roof_share is not None for op in first.ops)

    profiled()
    assert fresh_machine == ["cpu"]
    assert "roof" not in capsys.readouterr().err


def test_a_busy_machine_is_not_measured_and_the_report_says_so(
    fresh_machine: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.getloadavg", lambda: (99.0, 0.0, 0.0))
    found = profiled(progress=False)

    assert fresh_machine == []
    assert remembered(cpu_name()) is None
    assert found.measurements is not None
    assert any("is busy (load average 99.0" in note for note in found.measurements["notes"])


def test_the_report_says_that_the_roof_was_measured() -> None:
    found = profiled(progress=False)

    assert found.measurements is not None
    assert any("was measured in this run" in note for note in found.measurements["notes"])


def test_a_static_or_timed_analysis_does_not(fresh_machine: list[str]) -> None:
    tg.analyze(nn.Linear(8, 8), input_size=(4, 8))
    tg.analyze(nn.Linear(8, 8), input_size=(4, 8), inference=True, budget_s=0.02)
    assert fresh_machine == []


def test_nothing_is_announced_where_silence_was_asked_for(
    fresh_machine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    profiled(progress=False)
    assert fresh_machine == ["cpu"]
    assert "roof" not in capsys.readouterr().err


def test_a_device_that_is_not_there_is_not_measured(fresh_machine: list[str]) -> None:
    assert ensure_roof(torch.device("cuda", 99), None) == []
    assert ensure_roof(torch.device("meta"), None) == []
    assert fresh_machine == []


def test_rates_that_cannot_be_kept_are_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path / "file"))
    found = profiled(progress=False)
    assert found.measurements is not None
    assert any(note.startswith("no roofline: ") and "calibration.json" in note for note in found.measurements["notes"])
