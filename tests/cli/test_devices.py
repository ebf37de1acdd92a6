"""`torchgauge devices` and `tg.devices()`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import torchgauge as tg
from torchgauge.cli import main
from torchgauge.predict import find_device


def test_every_device_can_be_asked_for_by_its_name_and_its_title() -> None:
    for device in tg.devices():
        assert find_device(device.name).name == device.name
        # Of devices with one title in two sizes the title has the size.
        assert find_device(device.title).title == device.title


def test_predictions_of_devices_that_are_less_known_have_larger_errors() -> None:
    known = {device.name: device for device in tg.devices()}
    order = ("h200", "h100", "rtx4090", "rtx3060", "mi300x")
    bases = [known[name].time_basis for name in order]
    assert bases == ["measured", "published", "carried over", "data sheet", "data sheet"]
    errors = [known[name].time_error for name in order]
    assert errors == sorted(set(errors))  # type: ignore[type-var]
    assert [known[name].memory_error for name in ("h200", "rtx4090", "mi300x")] == [0.03, 0.06, 0.12]
    assert known["m4_max"].time_basis is None


def test_the_list_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["devices", "-o", str(tmp_path / "d.json")]) == 0
    shown = capsys.readouterr().out
    assert all(device.name in shown for device in tg.devices())
    assert "989.4" in shown
    written = json.loads((tmp_path / "d.json").read_text())["devices"]
    assert written == [device.to_dict() for device in tg.devices()]
    assert main(["devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"] == written
