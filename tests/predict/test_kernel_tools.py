"""tools/kernel_tables.py: times of kernels in one file, tiles, held-out models, energy fitted to whole models."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchgauge.facts import Cost, Signature, TensorSpec
from torchgauge.predict import (
    DEFAULTS,
    KernelTable,
    Product,
    Rates,
    TileModel,
    Tiling,
    combined_error,
    locate,
    read_table,
    write_table,
)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "tools"), *sys.path])
    yield import_module("kernel_tables")
    sys.modules.pop("kernel_tables", None)


def relu(elements: int) -> Signature:
    spec = TensorSpec((elements,))
    cost = Cost(0, elements, spec.nbytes, spec.nbytes)
    return Signature(
        "aten::relu", "", "activation", "counted", (), (spec,), (spec,), {"dim": [0], "unused": 1}, cost, 0
    )


def test_times_of_several_folders_are_one_file(tmp_path: Path, tools: Any) -> None:
    for folder, sizes, models in (("a", (1024, 2048), ["resnet18 b1"]), ("b", (4096,), [])):
        (tmp_path / folder).mkdir()
        with gzip.open(tmp_path / folder / "signatures.jsonl.gz", "wt") as file:
            for size in sizes:
                file.write(json.dumps([asdict(relu(size)), [True], models]) + "\n")
        lines = [[0, 2e-6, 0.1], [1, 3e-6, 0.9]] if folder == "a" else [[0, 4e-6, 0.0]]
        (tmp_path / folder / "kernels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = tmp_path / "times.jsonl.xz"
    assert tools.gather([tmp_path / "a", tmp_path / "b"], output) == 0
    times = tools.read_times(output)
    # Replays that differ by 90 % say nothing.
    assert [(one.signature.inputs[0].shape, one.cold, one.models, one.seconds) for one in times] == [
        ((1024,), (True,), ("resnet18 b1",), 2e-6),
        ((4096,), (True,), (), 4e-6),
    ]
    assert locate(times[0].signature, times[0].cold) == locate(relu(1024), [True])


def test_a_model_is_predicted_without_the_kernels_that_only_it_has(tools: Any) -> None:
    rates = Rates({"float32": 1e12}, 1e12, 1e-6)
    times = []
    for model, speed in (("fast b1", 1.0), ("slow b1", 3.0)):
        for power in range(20):
            size = 1 << (10 + power) if model == "fast b1" else 3 << (9 + power)
            seconds = speed * rates.seconds(locate(relu(size)))
            times.append(tools.Timed(relu(size), (False,), (model,), seconds, 0.0))
    table = KernelTable.of("x", rates, [(locate(one.signature), one.seconds) for one in times])
    found = tools.held_out_models(table, times)
    assert (found["runs"], found["models"]) == (2, 2)
    # Each is predicted from the other, which is three times as fast or as slow: one is off by 200 %, one by 67 %.
    assert found["mean"] == pytest.approx((2 + 2 / 3) / 2, rel=0.05)
    assert found["within"]["0.5"] == 0.0


def test_many_kernels_do_not_make_a_run_certain() -> None:
    alone = combined_error([(1.0, 0.5)])
    many = combined_error([(1.0, 0.5)] * 1000)
    assert 0.25 < many < alone
    assert combined_error([]) == 0.0


def test_energy_is_found_again_in_synthetic_runs(tools: Any) -> None:
    choose = np.random.default_rng(1)
    per_flop = {"float32": 5e-12, "tf32": 2e-12, "half": 8e-13}
    runs = []
    for _ in range(60):
        kind, seconds = choose.choice([*per_flop]), float(choose.uniform(1e-3, 5e-2))
        flops, cold, warm = (float(choose.uniform(*ends)) for ends in ((1e11, 5e12), (1e9, 5e10), (1e9, 5e10)))
        busy = seconds * float(choose.uniform(0.3, 1))
        joules = 120 * seconds + 150 * busy + per_flop[kind] * flops + 3e-10 * cold + 1e-10 * warm
        work = {kind: flops, "cold_bytes": cold, "warm_bytes": warm}
        runs.append(tools.EnergyRun(work, busy, seconds, seconds, joules))
    found = tools.energy_of(runs)
    assert found["idle_w"] == pytest.approx(120, rel=1e-3)
    assert found["busy_w"] == pytest.approx(150, rel=1e-3)
    assert found["per_flop_j"] == pytest.approx(
        {"float32": 5e-12, "tf32": 2e-12, "float16": 8e-13, "bfloat16": 8e-13}, rel=1e-3
    )
    assert found["per_byte_j"] == pytest.approx(1e-10, rel=1e-3)
    assert found["per_cold_byte_j"] == pytest.approx(3e-10, rel=1e-3)
    assert found["low"] == pytest.approx(1.0, abs=1e-3)
    # Predicted times that are 20 % off show in the error alone.
    unsure = tools.energy_of([run._replace(predicted_s=run.seconds * 1.2) for run in runs])
    assert unsure["mean_error"] > 0.02 > found["mean_error"]
    assert unsure["low"] == found["low"]
    noisy = tools.energy_of([run._replace(joules=run.joules * float(choose.uniform(0.8, 1.2))) for run in runs])
    assert noisy["low"] < 0.9 < 1.1 < noisy["high"]


def test_a_product_takes_another_wave_when_it_no_longer_fits() -> None:
    model = TileModel({"plain half rc": DEFAULTS})

    def seconds(rows: int) -> float:
        tiling = Tiling((Product("plain half rc", rows, 4096, 4096, 1),), 16)
        return 2 ** model.octaves(tiling, 989e12, 4.8e12, 0.0, 1e6)

    assert seconds(128) == pytest.approx(seconds(100), rel=0.02)  # the same tiles
    assert seconds(8192) == pytest.approx(2 * seconds(4096), rel=0.1)
    assert seconds(16384) > 1.9 * seconds(8192)


def test_a_group_that_was_not_measured_takes_the_most_similar_one() -> None:
    slow = DEFAULTS.copy()
    slow[30] += 3.0  # the launch
    model = TileModel({"plain half rc": DEFAULTS, "plain float32 rc": slow})
    known, unknown = (
        model.octaves(Tiling((Product(group, 512, 512, 512, 1),), 16), 67e12, 4.8e12, 0.0, 1e6)
        for group in ("plain float32 rc", "plain float32 rr")
    )
    assert known == unknown


def test_tiles_are_fitted_to_measured_products(tools: Any) -> None:
    """Kernels that are twice as efficient and take longer to launch than the values that the fit begins with."""
    truth = DEFAULTS.copy()
    truth[:10] += 0.7
    truth[30] += 1.0
    rates = Rates({"float32": 67e12}, 4.8e12, 2e-6)
    known = KernelTable("x", rates, {}, tiles=TileModel({"plain float32 rr": truth}))
    places = [locate(product(rows, columns, depth)) for rows in (64, 256, 1000, 4096) for columns in (128, 1024, 3000)
              for depth in (64, 512, 4096)]  # fmt: skip
    measured = [(place, 2 ** known.modelled(place)) for place in places]
    fitted = KernelTable("x", rates, {}, tiles=tools.fit_tiles(rates, measured, steps=120))
    plain = KernelTable("x", rates, {}, tiles=TileModel({"plain float32 rr": DEFAULTS}))
    errors, before = (
        np.abs([table.modelled(place) - np.log2(seconds) for place, seconds in measured]) for table in (fitted, plain)
    )
    assert np.median(errors) < 0.1 < 0.5 < np.median(before)


def test_a_table_keeps_its_tiles() -> None:
    rates = Rates({"float32": 67e12}, 4.8e12, 2e-6)
    place = locate(product(300, 500, 700))
    tiles = TileModel({"plain float32 rr": DEFAULTS + 0.25})
    table = KernelTable.of("x", rates, [(place, 1e-5)], tiles)
    read = read_table(write_table(table), "x")
    assert read.estimate(place).log_s == pytest.approx(np.log2(1e-5), abs=1e-3)
    assert read.modelled(place) == pytest.approx(table.modelled(place), abs=1e-3)


def product(rows: int, columns: int, depth: int) -> Signature:
    left, right, out = TensorSpec((rows, depth)), TensorSpec((depth, columns)), TensorSpec((rows, columns))
    cost = Cost(rows * columns * depth, 2 * rows * columns * depth, left.nbytes + right.nbytes, out.nbytes)
    return Signature("aten::mm", "", "matmul", "counted", (), (left, right), (out,), {}, cost, 0)
