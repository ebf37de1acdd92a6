"""Energy as part of an analysis, on a machine that may have no meter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.cli import main
from torchgauge.energy import MEASURED, Circumstances, blank, estimate_energy, list_meters, noted, unavailable
from torchgauge.errors import UsageError
from torchgauge.facts import EnergyFacts

NO_METER = "no energy meter: there is none"
JOULES = 8.0


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


@pytest.fixture
def no_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "torchgauge.energy.target.measure_run", lambda *args, **kwargs: EnergyFacts(unavailable(NO_METER))
    )


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A run takes `JOULES`, whatever the batch; what was asked for is kept."""
    asked: list[Any] = []

    def measure_run(subject: Any, ops: Any, order: Any, *, run: Any) -> EnergyFacts:
        asked.append(order)
        samples = subject.args[0].shape[0]
        known = {"joules": JOULES, "joules_per_sample": JOULES / samples, "watts_mean": 100.0}
        return EnergyFacts(cast(Any, {**blank(MEASURED), **known, "power_limit_watts": 700.0}))

    monkeypatch.setattr("torchgauge.energy.target.measure_run", measure_run)
    return asked


@pytest.mark.usefixtures("no_meter")
def test_without_a_meter_a_profile_estimates_and_says_why() -> None:
    found = tg.analyze(model(), input_size=(8, 16), profile=True, budget_s=0.02, carbon="DE", progress=False)
    energy = found.energy
    assert energy is not None
    assert (energy.origin, energy.joules, energy.reason) == ("estimated", None, NO_METER)
    latency = found.measurements["latency"]["median_s"] if found.measurements else 0.0
    assert energy.estimated_joules["high"] == pytest.approx(16 * torch.get_num_threads() * latency)
    assert energy.carbon["estimated_grams_per_1000"]["low"] < energy.carbon["estimated_grams_per_1000"]["high"]
    assert energy.watts_mean is None
    assert energy.estimated_watts_mean["high"] == pytest.approx(16 * torch.get_num_threads())
    assert energy.flops_per_joule is None
    rate = energy.estimated_flops_per_joule
    assert rate["high"] == pytest.approx(found.totals.flops / energy.estimated_joules["low"])
    assert rate["low"] < rate["value"] < rate["high"]
    assert found.totals.energy_j is None
    assert found.modules[0].estimated_energy_j == pytest.approx(energy.estimated_joules["value"])


def test_measured_energy_is_not_estimated_as_well(meter: list[Any]) -> None:
    found = tg.analyze(model(), input_size=(8, 16), profile=True, budget_s=0.02, carbon_intensity=360, progress=False)
    assert found.energy is not None
    assert (found.energy.origin, found.totals.energy_j) == ("measured", JOULES)
    assert found.energy.estimated_joules is None
    # 1 J a sample, 1/3.6e6 kWh, 360 g a kWh: 0.1 g a thousand.
    assert found.energy.carbon["grams_per_1000"] == pytest.approx(0.1)
    assert [order.parts_s > 0 for order in meter] == [True]


@pytest.mark.parametrize(("seconds_each", "notes"), [(0.0104, 0), (0.02, 1)])
def test_metered_runs_of_another_duration_get_a_note(seconds_each: float, notes: int) -> None:
    known = {"joules": JOULES, "iterations": 100, "window_s": 100 * seconds_each}
    facts = EnergyFacts(cast(Any, {**blank(MEASURED), **known}))
    found = noted(facts, 0.01).figures["notes"]
    assert len(found) == notes
    assert all("20.0 ms" in note and "10.0 ms" in note for note in found)


def test_a_sweep_has_energy_per_sample_and_the_efficient_points(meter: list[Any]) -> None:
    found = tg.analyze(model(), input_size=(2, 16), sweep={"batch": [1, 4]}, budget_s=0.02, progress=False)
    rows = found.measurements["sweep"] if found.measurements else []
    assert [row["energy_per_sample_j"] for row in rows] == [JOULES, JOULES / 4]
    assert [row["power_limit_watts"] for row in rows] == [700.0, 700.0]
    assert rows[1]["efficient"] is True
    assert [order.parts_s for order in meter] == [0.0, 0.0]
    assert found.energy is None


@pytest.mark.usefixtures("no_meter")
def test_a_sweep_without_a_meter_has_a_range_and_no_front() -> None:
    found = tg.analyze(model(), input_size=(2, 16), sweep={"batch": [1, 4]}, budget_s=0.02, progress=False)
    for row in found.measurements["sweep"] if found.measurements else []:
        guess, each = row["estimated_energy_per_sample_j"], row["time_per_sample_s"]
        assert guess["low"] == pytest.approx(torch.get_num_threads() * each)
        assert (row["energy_per_sample_j"], row["efficient"], row["energy_reason"]) == (None, None, NO_METER)


def test_carbon_alone_rests_on_the_static_work() -> None:
    found = tg.analyze(model(), input_size=(8, 16), carbon="FR", progress=False)
    assert found.measurements is None
    assert found.energy is not None
    expected = estimate_energy(found.capture.ops, Circumstances("any", "cpu")).work
    assert found.energy.estimated_joules["low"] == pytest.approx(expected.low)
    assert "no time was measured" in " ".join(found.energy.estimated_from["notes"])
    assert found.energy.reason == "energy is measured with --profile"


@pytest.mark.usefixtures("no_meter")
def test_a_profile_uses_the_worlds_grid_unless_another_is_given() -> None:
    found = tg.analyze(model(), input_size=(8, 16), profile=True, budget_s=0.02, pue=1.5, progress=False)
    assert found.energy is not None
    carbon = found.energy.carbon
    assert (carbon["country"], carbon["pue"]) == ("WORLD", 1.5)
    assert carbon["estimated_grams_per_1000"]["low"] > 0
    assert (carbon["place"], carbon["year"]) == ("World", 2024)
    assert carbon["assumed"] == "no country was given (--carbon CC)"


def test_neither_profile_nor_carbon_leaves_energy_alone() -> None:
    assert tg.analyze(model(), input_size=(8, 16), progress=False).energy is None


@pytest.mark.usefixtures("no_meter")
def test_a_measurement_that_fails_before_is_the_reason() -> None:
    class Fickle(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if type(x) is torch.Tensor and not x.is_meta:
                raise RuntimeError("out of luck")
            return x * 2

    found = tg.analyze(Fickle(), inputs=torch.ones(2, 3, device="meta"), profile=True, budget_s=0.02, progress=False)
    assert found.energy is not None
    assert found.energy.reason.startswith("the measurement failed: ")


def test_a_wrong_country_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="no electricity figures for 'XX'"):
        tg.analyze(model(), input_size=(8, 17), carbon="XX")  # which would fail


def test_the_command_line_takes_a_grid_and_an_overhead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = tmp_path / "net.py"
    code.write_text("import torch\ndef net():\n    return torch.nn.Linear(8, 8)\n")
    arguments = [f"{code}:net", "--input", "2x8", "--json", "--quiet"]
    assert main([*arguments, "--carbon", "SE", "--pue", "1.5"]) == 0
    carbon = json.loads(capsys.readouterr().out)["energy"]["carbon"]
    assert (carbon["country"], carbon["pue"]) == ("SE", 1.5)
    assert main([*arguments, "--carbon-intensity", "350"]) == 0
    assert json.loads(capsys.readouterr().out)["energy"]["carbon"]["g_per_kwh"] == 350
    assert main([*arguments, "--carbon", "QQ"]) == 2
    assert "--carbon-intensity G" in capsys.readouterr().err
    assert main([*arguments, "--pue", "1.5"]) == 2
    assert "--pue needs a grid" in capsys.readouterr().err


def test_meters_are_offered_with_their_precision_or_the_reason() -> None:
    rows = list_meters(["cpu", "cpu"])
    assert len({(row["name"], row["device"]) for row in rows}) == len(rows) > 0
    for row in rows:
        assert row["available"] is (row["reason"] is None)
        assert row["resolution_unit"] == "J"
