"""Figures that cannot be are withheld with their reason, whatever the noise of the runs."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from tests.report.energy_sample import measured_energy
from tests.report.measured_sample import MEDIAN_S, latency, measured_view
from torchgauge.facts import View, capture_from_document
from torchgauge.facts.plausibility import NEAR_THE_ROOF
from torchgauge.report import render


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


@cache
def measured_document() -> dict[str, Any]:
    """A real run, as its JSON document."""
    return tg.analyze(Net(), inputs=torch.randn(4, 3, 32, 32), inference=True, profile=True).to_dict()


def scaling_rows(speedups: dict[int, float]) -> list[dict[str, float]]:
    return [
        {"threads": count, "median_s": MEDIAN_S / speed, "speedup": speed, "efficiency": speed / count}
        for count, speed in speedups.items()
    ]


def noisy(document: dict[str, Any], seed: int) -> View:
    """The document as a busy machine could have measured it: every part was timed while another load ran."""
    chance, found = random.Random(seed), copy.deepcopy(document)
    strength = chance.choice((0.05, 0.3, 1.0, 2.0))

    def disturbed(value: float | None) -> Any:
        return None if value is None else value * chance.lognormvariate(0.0, strength)

    figures = found["measurements"]
    found_latency = figures["latency"]
    whole = disturbed(found_latency["median_s"])
    factor = whole / found_latency["median_s"]
    for key in ("median_s", "mean_s", "min_s", "max_s", "p90_s", "p99_s"):
        found_latency[key] *= factor
    half = whole * chance.uniform(0.0, 0.6)
    found_latency |= {"ci95_s": [whole - half, whole + half], "runs": 20, "host_s": disturbed(whole)}
    load = chance.lognormvariate(0.0, strength)
    for row in found["ops"]:
        if row["time_s"]:
            share, row["time_s"] = row["roof_share"], disturbed(row["time_s"] * load)
            row["roof_share"] = disturbed(share if share is not None else chance.random())
            row["bound"] = row["bound"] or chance.choice(("compute", "memory", "launch"))
    for row in found["modules"]:
        if row["time_s"]:
            row["time_s"] = disturbed(row["time_s"] * load)
            row["self_time_s"] = chance.uniform(-0.2, 1.0) * row["time_s"]
            row["time_share"] = row["time_s"] / whole
    figures["unexplained_s"] = whole - sum(row["time_s"] or 0.0 for row in found["ops"])
    figures["profile"] |= {"overhead_share": chance.uniform(-0.8, 2.0), "device_idle_s": None, "device_s": None}
    figures["threads"] = {
        "intra_op": 2, "inter_op": 1, "utilisation": disturbed(0.7),
        "serial_share": {"wall": chance.uniform(-0.5, 1.5)},
        "scaling": scaling_rows({1: 1.0, 2: disturbed(1.7), 4: disturbed(3.0)}),
    }  # fmt: skip
    figures["surroundings"] = {"own_share": disturbed(0.6), "other_processes_share": disturbed(0.3)}
    for row in (*found["advice"], *found["options"]):
        gain = row["expected_gain"]
        if gain is not None and gain["quantity"] == "time_s":
            gain["basis"] = "measured"
    return View(capture_from_document(found, "a run"))


def shares_printed(text: str, titles: tuple[str, ...]) -> list[float]:
    """The percentages in sections with these titles."""
    found = []
    for title in titles:
        part = text.partition(title)[2].partition("\n\n")[0]
        found += [float(number.replace(",", "")) for number in re.findall(r"(-?[\d,.]+) %", part)]
    return found


@pytest.mark.parametrize("seed", range(60))
def test_no_noise_makes_a_report_that_contradicts_itself(seed: int) -> None:
    view = noisy(measured_document(), seed)
    document = view.to_dict()
    figures = document["measurements"]
    whole = figures["latency"]["median_s"]
    half = max((figures["latency"]["ci95_s"][1] - figures["latency"]["ci95_s"][0]) / 2 / whole, 0.05)
    assert figures["unexplained_s"] is None or 0 <= figures["unexplained_s"] <= whole
    assert all(row["time_share"] is None or 0 <= row["time_share"] <= 1 for row in document["modules"])
    assert all(row["self_time_s"] is None or row["self_time_s"] >= 0 for row in document["modules"])
    for row in document["ops"]:
        assert row["roof_share"] is None or row["roof_share"] <= 1
        is_by_roof = row["bound"] in ("compute", "memory")
        assert not is_by_roof or row["roof_share"] is None or row["roof_share"] >= NEAR_THE_ROOF
    for row in figures["threads"]["scaling"] or ():
        assert 1 / row["threads"] <= row["speedup"] <= row["threads"]
    assert all(0 <= share <= 1 for share in (figures["threads"]["serial_share"] or {}).values())
    assert figures["latency"]["host_s"] is None or figures["latency"]["host_s"] <= (1 + half) * whole
    assert sum(share or 0 for share in (
        figures["surroundings"]["own_share"], figures["surroundings"]["other_processes_share"]
    )) <= 1 + half  # fmt: skip
    for row in (*document["advice"], *document["options"]):
        gain = row["expected_gain"]
        if gain is not None and gain["quantity"] == "time_s":
            middle = (gain["low"] + gain["high"]) / 2
            assert (gain["high"] - gain["low"]) / 2 >= min(half, 1, 1 / middle - 1) * middle * (1 - 1e-6)
            assert 0 <= gain["low"] <= gain["high"] <= 1
    text = render(view, "text")
    assert "Unattributed  -" not in text
    assert all(share <= 100 for share in shares_printed(text, ("Slowest modules", "Slowest ops", "Thread scaling")))
    assert View(capture_from_document(document, "a run")).to_dict() == document  # what was withheld stays so


def test_ops_that_take_longer_than_the_run_get_no_shares_and_the_reason_is_told() -> None:
    view = measured_view(unexplained_s=-0.5 * MEDIAN_S, latency=latency(median=0.01))
    figures = view.to_dict()["measurements"]
    assert figures["unexplained_s"] is None
    assert any("unattributed time and shares of time are withheld" in note for note in figures["notes"])
    for format in ("text", "markdown", "html"):
        written = render(view, format)
        assert "shares of time are withheld" in written
        assert "Unattributed" not in written


def test_a_difference_within_the_noise_is_none() -> None:
    view = measured_view(unexplained_s=-0.001 * MEDIAN_S)
    assert view.to_dict()["measurements"]["unexplained_s"] == 0.0
    assert not any("withheld" in note for note in view.to_dict()["measurements"]["notes"])


def above_the_roof(document: dict[str, Any]) -> None:
    document["ops"][0] |= {"roof_share": 1.82, "bound": "memory"}


def far_from_the_roof(document: dict[str, Any]) -> None:
    document["ops"][0] |= {"roof_share": 0.007, "bound": "compute"}


@pytest.mark.parametrize("change", [above_the_roof, far_from_the_roof])
def test_only_an_op_near_the_roof_is_bound_by_it(change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(render(measured_view(), "json"))
    change(document)
    row = View(capture_from_document(document, "a run")).to_dict()["ops"][0]
    assert row["bound"] is None
    assert row["roof_share"] in (None, 0.007)


def test_a_launch_bound_op_stays_so_however_far_from_the_roof() -> None:
    document = json.loads(render(measured_view(), "json"))
    document["ops"][0] |= {"roof_share": 0.007, "bound": "launch"}
    assert View(capture_from_document(document, "a run")).to_dict()["ops"][0]["bound"] == "launch"


def test_threads_make_a_run_neither_n_times_slower_nor_more_than_n_times_faster() -> None:
    threads = {"intra_op": 4, "inter_op": 1, "scaling": scaling_rows({1: 1.0, 2: 0.03, 4: 3.1, 8: 20.0})}
    view = measured_view(threads=threads)
    figures = view.to_dict()["measurements"]
    assert [row["threads"] for row in figures["threads"]["scaling"]] == [1, 4]
    assert any("the speed-up with 2 threads is withheld: 0.03×" in note for note in figures["notes"])
    assert "0.03" not in render(view, "text").partition("Thread scaling")[2]


def test_a_gain_in_measured_time_is_as_uncertain_as_the_run() -> None:
    gain = {"quantity": "time_s", "low": 0.11, "high": 0.14, "basis": "measured", "seconds": 0.01, "how": "a part"}
    advice: Any = {
        "rule": "any", "where": {"module": "", "ops": [], "weight": None}, "evidence": {}, "recommendation": "do it",
        "code": None, "expected_gain": gain, "risk": "none", "confidence": "high", "verified": None,
    }  # fmt: skip
    wide = latency() | {"ci95_s": [0.43 * MEDIAN_S, 1.57 * MEDIAN_S]}
    view = measured_view(latency=wide).with_remarks(advice=[advice])
    shown = view.to_dict()["advice"][0]["expected_gain"]
    assert shown["low"] == pytest.approx(0.125 * 0.43)
    assert shown["high"] == pytest.approx(0.125 * 1.57)
    predicted: Any = {**advice, "expected_gain": {**gain, "basis": "predicted"}}
    unchanged = measured_view(latency=wide).with_remarks(advice=[predicted])
    assert unchanged.to_dict()["advice"][0]["expected_gain"]["low"] == 0.11


def test_ops_do_not_take_more_energy_than_the_run() -> None:
    document = json.loads(render(measured_energy(), "json"))
    assert any(row["energy_j"] for row in document["ops"])
    for row in document["ops"]:
        row["energy_j"] = row["energy_j"] and 10 * row["energy_j"]
    found = View(capture_from_document(document, "a run")).to_dict()
    assert all(row["energy_j"] is None for row in (*found["ops"], *found["modules"]))
    assert any("energy of ops and modules is withheld" in note for note in found["energy"]["notes"])


def test_a_profiler_that_makes_runs_much_faster_shows_a_busy_machine() -> None:
    profile = measured_view().to_dict()["measurements"]["profile"]
    figures = measured_view(profile=profile | {"overhead_share": -0.3}).to_dict()["measurements"]
    assert figures["profile"]["overhead_share"] is None
    assert figures["unexplained_s"] is None
    assert any("the machine was busy" in note for note in figures["notes"])


def test_a_predicted_op_is_bound_by_the_roof_only_near_it() -> None:
    small = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.LayerNorm(64))
    large = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU())
    for model, shape in ((small, (8, 64)), (large, (4096, 4096))):
        found = tg.forecast(model, on="h200", inputs=torch.zeros(shape), execution="graph")
        assert isinstance(found, tg.Forecast)
        assert found.ops
        for row in found.ops:
            assert row["roof_share"] is None or row["roof_share"] <= 1
            is_by_roof = row["bound"] in ("compute", "memory")
            assert not is_by_roof or row["roof_share"] is None or row["roof_share"] >= NEAR_THE_ROOF
