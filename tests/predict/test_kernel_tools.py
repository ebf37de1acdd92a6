"""tools/kernels: times of kernels in one file, tiles, held-out models, energy fitted to whole models."""

from __future__ import annotations

import gzip
import json
import sys
import warnings
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchgauge.errors import FormatError
from torchgauge.facts import Cost, Signature, TensorSpec
from torchgauge.predict import (
    ATTENTION_DEFAULTS,
    DEFAULTS,
    BlockModel,
    KernelTable,
    Place,
    Product,
    Rates,
    Streaming,
    Tiled,
    TileModel,
    Tiling,
    TreeNode,
    attention_microseconds,
    build_forest,
    closest_parameters,
    combined_error,
    locate,
    read_table,
    write_table,
)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "tools" / "kernels"), *sys.path])
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


def test_a_call_that_was_measured_again_has_its_last_time(tmp_path: Path, tools: Any) -> None:
    for folder, sizes, seconds in (("a", (1024, 2048), 4e-6), ("b", (2048,), 3e-6)):
        (tmp_path / folder).mkdir()
        with gzip.open(tmp_path / folder / "signatures.jsonl.gz", "wt") as file:
            for size in sizes:
                file.write(json.dumps([asdict(relu(size)), [False], []]) + "\n")
        lines = [[number, seconds, 0.0] for number in range(len(sizes))]
        (tmp_path / folder / "kernels.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert tools.gather([tmp_path / "a"], tmp_path / "first.jsonl.xz") == 0
    assert tools.gather([tmp_path / "first.jsonl.xz", tmp_path / "b"], tmp_path / "times.jsonl.xz") == 0
    found = {one.signature.inputs[0].numel: one.seconds for one in tools.read_times(tmp_path / "times.jsonl.xz")}
    assert found == {1024: 4e-6, 2048: 3e-6}


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
        return float(2 ** model.octaves([Tiled(tiling, 989e12, 0.0, 1e6)], 4.8e12)[0][0])

    assert seconds(128) == pytest.approx(seconds(100), rel=0.02)  # the same tiles
    assert seconds(8192) == pytest.approx(2 * seconds(4096), rel=0.1)
    assert seconds(16384) > 1.9 * seconds(8192)


def test_a_group_that_was_not_measured_takes_the_most_similar_one() -> None:
    slow = DEFAULTS.copy()
    slow[30] += 3.0  # the launch
    model = TileModel({"plain half rc": DEFAULTS, "plain float32 rc": slow})
    tilings = [Tiling((Product(group, 512, 512, 512, 1),), 16) for group in ("plain float32 rc", "plain float32 rr")]
    (known, unknown), _ = model.octaves([Tiled(tiling, 67e12, 0.0, 1e6) for tiling in tilings], 4.8e12)
    assert known == unknown


def test_trees_say_what_their_thresholds_say_and_a_table_keeps_them() -> None:
    """Two trees, one of a single leaf: a value that equals a threshold goes left."""
    deep = TreeNode(feature=1, threshold=2.0, children=(TreeNode(-0.5), TreeNode(feature=0, threshold=4.0, children=(
        TreeNode(0.25), TreeNode(1.0)))))  # fmt: skip
    forest = build_forest([deep, TreeNode(0.125)])
    rows = np.array([[9.0, 2.0], [4.0, 2.5], [4.5, 2.5]], np.float32)
    assert forest.octaves(rows).tolist() == [-0.375, 0.375, 1.125]
    table = KernelTable("x", Rates({"float32": 67e12}, 4.8e12, 2e-6), {}, trees={"matmul": forest})
    read = read_table(write_table(table), "x")
    assert read.trees["matmul"].octaves(rows).tolist() == [-0.375, 0.375, 1.125]


def test_trees_that_point_outside_are_refused() -> None:
    forest = build_forest([TreeNode(feature=0, threshold=1.0, children=(TreeNode(1.0), TreeNode(2.0)))])
    bad = replace(forest, child=np.array([200, 0, 0], np.uint8))
    table = KernelTable("x", Rates({"float32": 67e12}, 4.8e12, 2e-6), {}, trees={"matmul": bad})
    with pytest.raises(FormatError, match="point outside"):
        read_table(write_table(table), "x")


def test_trees_decide_unless_the_kernel_was_measured() -> None:
    rates = Rates({"float32": 67e12}, 4.8e12, 2e-6)
    tiles = TileModel({"plain float32 rr": DEFAULTS})
    measured, other = locate(product(512, 512, 512)), locate(product(512, 768, 512))
    plain = KernelTable.of("x", rates, [(measured, 1e-4)], tiles=tiles)
    with_trees = replace(plain, trees={"matmul": build_forest([TreeNode(0.25)])})
    assert with_trees.estimate(measured) == plain.estimate(measured)
    assert with_trees.estimate(other).log_s == pytest.approx(plain.modelled([other])[0] + 0.25, abs=1e-3)


def test_trees_see_what_the_neighbours_say() -> None:
    rates = Rates({"float32": 67e12}, 4.8e12, 2e-6)
    tiles = TileModel({"plain float32 rr": DEFAULTS})
    table = KernelTable.of("x", rates, [(locate(product(512, 512, 512)), 1e-4)], tiles=tiles)
    other = locate(product(512, 768, 512))
    near = table.near([other])[0]
    shifted = near._replace(value=near.value + 1)
    rows = [table.features([other], [one])[1][0] for one in (near, shifted)]
    assert np.abs(rows[1] - rows[0]).max() == pytest.approx(1)


def test_a_group_is_shared_out_to_one_block() -> None:
    data, sums = TensorSpec((4, 512, 3999)), TensorSpec((4, 1))
    weights = TensorSpec((512,))
    call = Signature("aten::native_group_norm", "", "normalization", "counted", (), (data, weights, weights),
                     (data, sums, sums), {}, Cost(0, 0, data.nbytes, data.nbytes), 0)  # fmt: skip
    work = locate(call).work
    assert isinstance(work, Streaming)
    assert (work.outer, work.middle, work.inner) == (4, 512 * 3999, 1)


def test_a_group_norm_of_many_groups_is_faster_than_one_of_few() -> None:
    def seconds(groups: int) -> float:
        data, mean = TensorSpec((16, 128, 28, 28)), TensorSpec((16, groups))
        weights = TensorSpec((128,))
        nbytes = data.nbytes
        call = Signature("aten::native_group_norm", "", "normalization", "counted", (), (data, weights, weights),
                         (data, mean, mean), {}, Cost(0, 0, nbytes, nbytes), 0)  # fmt: skip
        return (
            2
            ** KernelTable("x", Rates({"float32": 67e12}, 4.8e12, 2e-6), {}, tiles=TileModel({})).modelled(
                [locate(call)]
            )[0]
        )

    # An H200 takes 49 us with one group (tools/kernels/kernel_times.jsonl.xz).
    assert seconds(1) == pytest.approx(49e-6, rel=0.15)
    assert seconds(32) < seconds(1) / 4


def test_a_transposed_convolution_does_the_work_of_its_filters_once() -> None:
    data, weight, out = TensorSpec((8, 64, 16, 16)), TensorSpec((64, 32, 4, 4)), TensorSpec((8, 32, 32, 32))
    settings = {"groups": 1, "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "transposed": True}
    call = Signature("aten::convolution", "", "convolution", "counted", (), (data, weight), (out,), settings,
                     Cost(0, 0, 0, 0), 0)  # fmt: skip
    place = locate(call)
    assert place.tiling is not None
    (one,) = place.tiling.products
    assert 2 * one.rows * one.columns * one.depth == place.flops


@pytest.mark.parametrize(("width", "kind"), [(32, "grouped"), (48, "odd-grouped")])
def test_groups_as_wide_as_a_power_of_two_are_a_separate_kind(width: int, kind: str) -> None:
    data, weight = TensorSpec((8, 4 * width, 14, 14)), TensorSpec((4 * width, width, 3, 3))
    settings = {"groups": 4, "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "transposed": False}
    call = Signature("aten::convolution", "", "convolution", "counted", (), (data, weight), (data,), settings,
                     Cost(0, 0, 0, 0), 0)  # fmt: skip
    assert f" {kind} " in locate(call).kind


def convolved(*inputs: TensorSpec, out: TensorSpec, mask: Any = None) -> Place:
    """With a filter of three by three or one by one; with a mask its gradients, of which `out` is the first input."""
    padding = inputs[-1 if mask is not None or len(inputs) == 2 else 1].shape[-1] // 2
    settings: dict[str, Any] = {"groups": 1, "stride": [1, 1], "padding": [padding] * 2, "dilation": [1, 1],
                                "transposed": False}  # fmt: skip
    name, given = "aten::convolution", inputs
    if mask is not None:
        name, given, settings = "aten::convolution_backward", (out, *inputs), settings | {"output_mask": mask}
    return locate(Signature(name, "", "convolution", "counted", (), given, (out,), settings, Cost(0, 0, 0, 0), 0))


def test_a_convolution_takes_the_kernels_around_it_too() -> None:
    """Against what a profiler saw of two convolutions on an H200."""
    data, weight = TensorSpec((128, 512, 28, 28), "float16"), TensorSpec((768, 512, 1, 1), "float16")
    out, bias = TensorSpec((128, 768, 28, 28), "float16"), TensorSpec((768,), "float16")
    with_bias, without = convolved(data, weight, bias, out=out), convolved(data, weight, out=out)
    assert with_bias.around_s == pytest.approx((239e-6, 0), rel=0.2)
    assert without.around_s == (0, 0)
    rates = Rates({"float16": 989e12, "float32": 67e12}, 4.8e12, 2e-6)
    table = KernelTable("x", rates, {}, tiles=TileModel({"forward pointwise half first": DEFAULTS}))
    longer, shorter = (2**octaves for octaves in table.modelled([with_bias, without]))
    assert longer - shorter == pytest.approx(with_bias.around_s[0])

    image, filters = TensorSpec((8, 96, 96, 96)), TensorSpec((96, 96, 3, 3))
    assert convolved(image, filters, out=image, mask=[True, True, False]).around_s[1] == pytest.approx(74e-6, rel=0.2)
    last = replace(image, stride=(96 * 96 * 96, 1, 96 * 96, 96))
    assert convolved(last, filters, out=last, mask=[True, True, False]).around_s[1] == 0


def test_tiles_are_fitted_to_measured_products(tools: Any) -> None:
    """Kernels that are twice as efficient and take longer to launch than the values that the fit begins with."""
    truth = DEFAULTS.copy()
    truth[:10] += 0.7
    truth[30] += 1.0
    rates = Rates({"float32": 67e12}, 4.8e12, 2e-6)
    known = KernelTable("x", rates, {}, tiles=TileModel({"plain float32 rr": truth}))
    places = [locate(product(rows, columns, depth)) for rows in (64, 256, 1000, 4096) for columns in (128, 1024, 3000)
              for depth in (64, 512, 4096)]  # fmt: skip
    measured = [(place, 2**octaves) for place, octaves in zip(places, known.modelled(places), strict=True)]
    fitted = KernelTable("x", rates, {}, tiles=tools.fit_tiles(rates, measured, steps=120))
    plain = KernelTable("x", rates, {}, tiles=TileModel({"plain float32 rr": DEFAULTS}))
    truths = np.log2([seconds for _, seconds in measured])
    errors, before = (np.abs(np.array(table.modelled(places)) - truths) for table in (fitted, plain))
    assert np.median(errors) < 0.1 < 0.5 < np.median(before)


def test_a_table_is_the_same_when_it_is_made_again(tools: Any) -> None:
    pytest.importorskip("lightgbm")
    rates = Rates({"float32": 67e12}, 4.8e12, 2e-6)
    sizes = [(64 << row, 64 << column, depth) for row in range(6) for column in range(6) for depth in (64, 200, 512)]
    places = [locate(product(*three)) for three in sizes] + [locate(product(100, 100, depth)) for depth in range(8, 80)]
    measured = [(place, 1.3 * rates.seconds(place)) for place in places]
    first, second = (write_table(tools.fitted_table(rates, measured)) for _ in range(2))
    assert first == second
    errors = tools.errors_without(rates, measured, set(range(0, len(measured), 5)))
    assert len(errors) == len(range(0, len(measured), 5))
    assert np.median(np.abs([error for error, _ in errors.values()])) < 0.1


def test_a_family_is_made_again_without_the_others(tools: Any) -> None:
    pytest.importorskip("lightgbm")
    rates = Rates({"float32": 67e12}, 4.8e12, 2e-6)
    places = [locate(product(64 << row, 64 << column, depth)) for row in range(4) for column in range(4)
              for depth in (64, 128, 300, 512)]  # fmt: skip
    own = [(place, tools.Timed(product(1, 1, 1), (), ("resnet",), 1.3 * rates.seconds(place), 0.0)) for place in places]
    rows = {"relu": (np.zeros((1, 10), np.float32), np.zeros(1, np.float32))}
    tiles = TileModel({"forward full half last": DEFAULTS})
    before = KernelTable("x", rates, {"stream": rows}, {"stream": [[0.1]]}, {"held_out": {"stream": {}}}, tiles)
    table = tools.with_family(before, "matmul", own)
    assert table.rows["stream"] is rows
    assert sum(len(offsets) for _, offsets in table.rows["matmul"].values()) == len(places)
    assert set(table.spread) == set(table.facts["held_out"]) == {"stream", "matmul"}
    assert table.tiles is not None
    assert {"forward full half last", "plain float32 rr"} <= set(table.tiles.parameters)
    assert table.facts["held_out_at_random"]["matmul"]["of models"][0] > 0


def test_a_table_keeps_its_tiles() -> None:
    rates = Rates({"float32": 67e12}, 4.8e12, 2e-6)
    place = locate(product(300, 500, 700))
    tiles = TileModel({"plain float32 rr": DEFAULTS + 0.25})
    table = KernelTable.of("x", rates, [(place, 1e-5)], tiles=tiles)
    read = read_table(write_table(table), "x")
    assert read.estimate(place).log_s == pytest.approx(np.log2(1e-5), abs=1e-3)
    assert read.modelled([place]) == pytest.approx(table.modelled([place]), abs=1e-3)


def attended(
    queries: int, keys: int, *, batch: int = 1, heads: int = 32, shared: int = 1, is_causal: bool = False
) -> Place:
    query, key = TensorSpec((batch, heads, queries, 128), "bfloat16"), TensorSpec(
        (batch, heads // shared, keys, 128), "bfloat16")  # fmt: skip
    cost = Cost(0, 0, query.nbytes + 2 * key.nbytes, query.nbytes)
    name = "aten::_scaled_dot_product_cudnn_attention"
    attributes = {"is_causal": is_causal}
    return locate(
        Signature(name, "", "attention", "counted", (), (query, key, key), (query,), attributes, cost, 0)
    )  # fmt: skip


def attention_table(defaults: Any = ATTENTION_DEFAULTS, **groups: Any) -> KernelTable:
    parameters = dict.fromkeys(("cudnn_attention half", "cudnn_attention half decoding"), defaults) | groups
    rates = Rates({"float32": 67e12, "bfloat16": 989e12}, 4.8e12, 2e-6)
    return KernelTable("x", rates, {}, blocks={"attention": BlockModel(parameters, attention_microseconds)})


def test_attention_goes_in_blocks_and_waves() -> None:
    table = attention_table()

    def seconds(*sizes: int, **more: Any) -> float:
        return float(2 ** table.modelled([attended(*sizes, **more)])[0])

    assert seconds(4096, 4096, batch=8) == pytest.approx(4 * seconds(2048, 2048, batch=8), rel=0.15)
    assert seconds(8192, 8192, is_causal=True) == pytest.approx(seconds(8192, 8192) / 2, rel=0.15)
    # A step of decoding reads keys that query heads share once, and splits long ones over the multiprocessors.
    assert seconds(1, 8192, batch=16, shared=8) < 0.6 * seconds(1, 8192, batch=16)
    assert seconds(1, 8192, heads=8) < 4 * seconds(1, 1024, heads=8)


def recurrent_place(
    units: int, dtype: str, *, mode: int = 2, batch: int = 8, steps: int = 50, layers: int = 1
) -> Place:
    data = TensorSpec((batch, steps, units), dtype)
    attributes = {"hidden_size": units, "num_layers": layers, "mode": mode, "batch_first": True, "train": False}
    cost = Cost(0, 0, data.nbytes, data.nbytes)
    return locate(Signature("aten::_cudnn_rnn", "", "rnn", "counted", (), (data,), (data,), attributes, cost, 0))


def test_recurrent_layers_have_the_algorithm_that_torch_asks_for() -> None:
    def algorithm(*args: Any, **more: Any) -> str:
        return recurrent_place(*args, **more).kind.split(" ")[-1]

    assert algorithm(128, "float32") == "small"
    assert algorithm(192, "float32") == "spilled"
    assert algorithm(256, "float32") == algorithm(512, "float32") == algorithm(64, "bfloat16") == "standard"
    assert algorithm(384, "float32", mode=1) == "spilled"  # plain layers are asked for so up to 384 units
    assert algorithm(512, "float16") == "persistent"
    assert algorithm(512, "float16", mode=3) == algorithm(512, "float16", layers=2) == "standard"
    assert algorithm(512, "float16", batch=12) == "standard"
    # Steps are launched one by one where the algorithm does not keep the layer in a multiprocessor.
    assert recurrent_place(128, "float32", layers=2).launches == 2
    assert recurrent_place(512, "float32", layers=2, steps=50).launches == 100


def test_blocks_are_fitted_and_kept(tools: Any) -> None:
    """Kernels that are twice as efficient and take longer to launch than the values that the fit begins with."""
    truth = ATTENTION_DEFAULTS.copy()
    truth[:6] += 0.7
    truth[8] += 1.0
    known, plain = attention_table(truth), attention_table()
    places = [attended(queries, keys, batch=batch) for queries in (1, 64, 512, 2048) for keys in (512, 1024, 4096)
              for batch in (1, 4)]  # fmt: skip
    truths = known.modelled(places)
    measured = [(place, 2**octaves) for place, octaves in zip(places, truths, strict=True)]
    fitted = tools.fit_blocks(known.rates, measured, "attention", attention_microseconds, ATTENTION_DEFAULTS, steps=150)
    table = KernelTable.of("x", known.rates, measured, blocks={"attention": fitted})
    errors, before = (np.abs(np.array(one.modelled(places)) - truths) for one in (table, plain))
    assert np.median(errors) < 0.1 < 0.3 < np.median(before)
    read = read_table(write_table(table), "x")
    assert read.modelled(places) == pytest.approx(table.modelled(places), abs=0.01)


def product(rows: int, columns: int, depth: int) -> Signature:
    left, right, out = TensorSpec((rows, depth)), TensorSpec((depth, columns)), TensorSpec((rows, columns))
    cost = Cost(rows * columns * depth, 2 * rows * columns * depth, left.nbytes + right.nbytes, out.nbytes)
    return Signature("aten::mm", "", "matmul", "counted", (), (left, right), (out,), {}, cost, 0)


def test_measured_convolutions_are_listed_again_and_with_another_batch(tools: Any) -> None:
    def row(op: str, shapes: list[list[int]], made: list[list[int]], seconds: float, **more: Any) -> list[Any]:
        specs = [[[shape, "float32", None, None, 0] for shape in several] for several in (shapes, made)]
        settings = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "transposed": False, "groups": 1} | more
        return [f"aten::{op}", "", "convolution", *specs, settings, [0, 0, 0], "0" * len(shapes), [], seconds, 0.0]

    weight = [16, 8, 1, 1]
    forward = {batch: row("convolution", [[batch, 8, 4, 4], weight], [[batch, 16, 4, 4]], 5e-6) for batch in (4, 8, 32)}
    gradient = row(
        "convolution_backward", [[2, 16, 4, 4], [2, 8, 4, 4], weight], [[2, 8, 4, 4], weight], 9e-5,
        output_mask=[True, True, False],
    )  # fmt: skip
    rows = [(["resnet"], one) for one in (*forward.values(), gradient)]
    calls = import_module("kernel_layers").batch_draw(rows)
    found = {(call["op"], call["tensors"][0][0][0]): call for call in calls}
    # 4 and 8 are each other's neighbours; a long kernel is rarely measured again.
    batches = {batch for op, batch in found if op == "aten::convolution"}
    assert batches == {4, 8, 16, 32, 64}
    other = found["aten::convolution_backward", 1]
    assert [one["shape"][0] for one in other["signature"]["inputs"]] == [1, 1, 16]
    assert [one["shape"] for one in other["signature"]["outputs"]] == [(1, 8, 4, 4), (16, 8, 1, 1)]
    assert other["args"]["input"] == {"tensor": 1}
    assert other["signature"]["cost"]["flops"] > 0


def test_drawn_functions_become_the_calls_that_a_forecast_looks_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "tools" / "kernels"), *sys.path])
    streamed, device = import_module("kernel_streamed"), import_module("kernel_device")
    parts = (streamed.batch_norm, streamed.resampling, streamed.pooling, streamed.reduction)
    monkeypatch.setattr(streamed, "PARTS", tuple((part, 12) for part in parts))
    calls = streamed.streamed_draw()
    names = {call["op"] for call in calls}
    assert {"aten::native_batch_norm", "aten::native_batch_norm_backward", "aten::_fused_rms_norm"} <= names
    assert any(name.startswith("aten::upsample") for name in names)
    for call in calls:
        signature = call["signature"]
        assert len(signature["inputs"]) == len(call["tensors"]) == len(call["cold"])
        if "_fused_" not in call["op"] and sum(np.prod(shape) for shape, _, _ in call["tensors"]) < 1e5:
            # The call gives what the trace says it does.
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = device.Call(call | {"cold": []}, "meta")()
            shapes = [list(one.shape) for one in (made if isinstance(made, tuple | list) else [made])]
            assert list(signature["outputs"][0]["shape"]) == shapes[0]


def test_short_kernels_are_listed_again_unchanged(tmp_path: Path, tools: Any) -> None:
    (tmp_path / "a").mkdir()
    with gzip.open(tmp_path / "a" / "signatures.jsonl.gz", "wt") as file:
        for call in (product(64, 32, 16), product(8192, 8192, 8192), relu(1024)):
            file.write(json.dumps([asdict(call), [True], ["gpt2"]]) + "\n")
    lines = [[0, 4e-6, 0.0], [1, 1e-3, 0.0], [2, 3e-6, 0.0]]
    (tmp_path / "a" / "kernels.jsonl").write_text("\n".join(map(json.dumps, lines)))
    times = tmp_path / "times.jsonl.xz"
    assert tools.gather([tmp_path / "a"], times) == 0
    (again,) = import_module("kernel_layers").measured_again(tools.measured_rows(times), ["matmul"])
    assert [shape for shape, *_ in again["tensors"]] == [[64, 16], [16, 32]]
    (tmp_path / "b").mkdir()
    with gzip.open(tmp_path / "b" / "signatures.jsonl.gz", "wt") as file:
        file.write(json.dumps([again["signature"], again["cold"], again["models"]]) + "\n")
    (tmp_path / "b" / "kernels.jsonl").write_text(json.dumps([0, 2e-6, 0.0]))
    assert tools.gather([times, tmp_path / "b"], times) == 0
    assert sorted(one.seconds for one in tools.read_times(times)) == [2e-6, 3e-6, 1e-3]


def test_short_streamed_kernels_are_listed_again_with_the_arguments_of_a_list(tmp_path: Path, tools: Any) -> None:
    (tmp_path / "a").mkdir()
    with gzip.open(tmp_path / "a" / "signatures.jsonl.gz", "wt") as file:
        for call in (relu(1024), relu(2048), relu(1 << 24)):
            file.write(json.dumps([asdict(call), [True], []]) + "\n")
    lines = [[0, 3e-6, 0.0], [1, 3e-6, 0.0], [2, 5e-5, 0.0]]
    (tmp_path / "a" / "kernels.jsonl").write_text("\n".join(map(json.dumps, lines)))
    times = tmp_path / "times.jsonl.xz"
    assert tools.gather([tmp_path / "a"], times) == 0
    listed = [{"op": "aten::relu", "overload": "", "tensors": [[[size], [1], "float32"]], "args": {"unkept": 2},
               "cold": [True]} for size in (1024, 1 << 24)]  # fmt: skip
    rows = list(tools.measured_rows(times))
    (again,) = import_module("kernel_layers").listed_again(rows, listed)
    assert (again["tensors"][0][0], again["args"]) == ([1024], {"unkept": 2})


def test_calls_without_a_measured_neighbour_are_found(tools: Any) -> None:
    gaps_tool = import_module("kernel_gaps")
    draw = gaps_tool.ModelSizes(1)
    examples = [one for part in (gaps_tool.bags, gaps_tool.complex_numbers) for _ in range(6) for one in part(draw)]
    calls = gaps_tool.listed_calls(draw, examples)
    first = next(call for call in calls if call["op"].startswith("aten::_thnn"))
    row = [first["op"], "", "other", *([[[*one["shape"]], one["dtype"], one["stride"], one["stored"], 0]
                                        for one in first["signature"][side]] for side in ("inputs", "outputs")),
           {}, [first["signature"]["cost"][name] for name in ("flops", "bytes_read", "bytes_written")],
           "".join("01"[flag] for flag in first["cold"]), [], 3e-6, 0.0]  # fmt: skip
    gaps = gaps_tool.located(calls, [([], row)])
    by_call = {id(gap.call): gap.octaves for gap in gaps}
    assert by_call[id(first)] < 0.01
    bags = [gap for gap in gaps if "embedding_bag" in gap.call["op"]]
    assert bags
    assert all(gap.octaves == float("inf") for gap in bags)
    chosen = gaps_tool.filled(gaps)
    assert not any(gap.call is first for gap in chosen)
    kinds = [(gap.family, gap.kind) for gap in chosen if gap.octaves == float("inf")]
    # Of kinds that were not measured the first call of each comes before the second of any.
    assert len(set(kinds[: len(set(kinds))])) == len(set(kinds)) > 1


def stream_of(op: str, *inputs: TensorSpec, made: TensorSpec, **attributes: Any) -> Streaming:
    cost = Cost(0, 0, sum(spec.nbytes for spec in inputs), made.nbytes)
    work = locate(Signature(f"aten::{op}", "", "other", "counted", (), inputs, (made,), attributes, cost, 0)).work
    assert isinstance(work, Streaming)
    return work


def test_a_thread_of_a_resampled_image_goes_over_its_planes() -> None:
    def shared(op: str, given: tuple[int, ...], made: tuple[int, ...]) -> tuple[int, int, int]:
        work = stream_of(op, TensorSpec(given), made=TensorSpec(made))
        return work.outer, work.middle, work.inner

    small, large = (2, 64, 240, 320), (2, 64, 480, 640)
    assert shared("upsample_bilinear2d", small, large) == (128, 480 * 640, 1)
    assert shared("upsample_nearest2d_backward", large, small) == (2 * 4, 64 * 240 * 320, 1)
    assert shared("upsample_nearest1d", (8, 4, 100), (8, 4, 200)) == (8, 4 * 200, 1)
    grid = TensorSpec((1, 160, 192, 224, 3))
    work = stream_of("grid_sampler_3d", TensorSpec((1, 1, 160, 192, 224)), grid, made=TensorSpec((1, 1, 160, 192, 224)))
    assert (work.outer, work.middle, work.inner) == (1, 160 * 192 * 224, 1)


def test_a_thread_of_a_bag_goes_over_its_rows() -> None:
    table, places = TensorSpec((1_000_000, 64)), TensorSpec((20_480,), "int64")
    work = stream_of("_embedding_bag", table, places, TensorSpec((2048,), "int64"), made=TensorSpec((2048, 64)), mode=1)
    assert (work.outer, work.middle, work.inner) == (10, 2048 * 64, 1)
    assert "mode1" in work.group


def test_a_product_of_complex_numbers_is_four_products() -> None:
    specs = TensorSpec((8, 64, 32), "complex64"), TensorSpec((8, 32, 16), "complex64")
    made = (TensorSpec((8, 64, 16), "complex64"),)
    place = locate(Signature("aten::bmm", "", "matmul", "counted", (), specs, made, {}, Cost(0, 0, 1, 1), 0))
    assert (place.family, place.flops) == ("matmul", 8.0 * 8 * 64 * 32 * 16)
    assert "complex64" in place.kind


def test_a_table_that_is_read_and_written_again_is_the_same_file() -> None:
    rates = Rates({"float32": 67e12}, 4.8e12, 2e-6)
    measured = [(locate(relu(size)), size * 1e-9) for size in (3000, 1000, 2000, 2000)]
    data = write_table(KernelTable.of("x", rates, measured))
    assert write_table(read_table(data, "x")) == data


def test_functions_of_parts_of_tensors_are_listed_with_their_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "tools" / "kernels"), *sys.path])
    calls = import_module("kernel_gaps").slice_draw(80)
    names = {call["op"] for call in calls}
    assert {"aten::_weight_norm_interface", "aten::mul", "aten::native_layer_norm"} <= names
    gates = [call["tensors"] for call in calls if call["op"] in ("aten::gelu", "aten::silu", "aten::sigmoid")]
    assert any(stride[0] > np.prod(shape[1:]) for (shape, stride, _), *_ in gates)


def test_a_short_list_has_some_of_everything_and_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "tools" / "kernels"), *sys.path])
    gaps_tool = import_module("kernel_gaps")
    ops = {"aten::convolution": 4000, "aten::mm": 900, "aten::relu": 900, "aten::cumsum": 9, "aten::_cudnn_rnn": 300}
    calls = [
        {"op": op, "overload": "", "tensors": [[[size], [1], "float32"]], "args": {}, "cold": [False]}
        for op, count in ops.items()
        for size in [*range(count), 0]
    ]
    found = gaps_tool.short_list(calls, 1000)
    assert len({(call["op"], call["tensors"][0][0][0]) for call in found}) == len(found)
    for length in (200, len(found)):
        names = [call["op"] for call in found[:length]]
        assert names.count("aten::convolution") == pytest.approx(0.4 / 0.92 * length, abs=3)  # no attention is given
    # A rare op has more than its share.
    assert [call["op"] for call in found].count("aten::cumsum") == 9


def test_an_unmeasured_group_is_like_the_median_of_those_most_like_it() -> None:
    names = ("1 group_norm first", "1 group_norm_backward last", "26 add first", "26 mul first", "26 relu first")
    known = {name: np.array([float(number)]) for number, name in enumerate(names)}
    assert closest_parameters(known, "26 mul first") == [3]
    assert closest_parameters(known, "1 group_norm last") == [0]  # the op decides, not the layout
    assert closest_parameters(known, "26 item first") == [3]  # of 2, 3 and 4
    # Another group in the table does not change what an unmeasured one takes.
    assert closest_parameters(known | {"26 abs first": np.array([3.2])}, "26 item first") == pytest.approx(3.1)


def test_a_kernel_far_from_the_roofline_and_from_its_neighbours_is_measured_again(tools: Any) -> None:
    """One that is as slow as those next to it is slow indeed."""
    rates = Rates({"float32": 67e12}, 4.8e12, 2e-6)

    def kernel(size: float, times: float, kind: str = "one") -> tuple[Place, float]:
        place = Place("convolution", kind, (size,), 1e9, "float32", 1e6)
        return place, times * rates.seconds(place)

    measured = [kernel(size, 2 + size) for size in range(10)]
    slow = [kernel(size, 300 + size, "slow") for size in range(10)]
    assert tools.doubtful(rates, measured + slow) == []
    assert tools.doubtful(rates, [*measured, kernel(4.1, 150), *slow, kernel(4.1, 9000, "slow")]) == [21, 10]
    assert tools.doubtful(rates, [*measured, kernel(4.1, 80)]) == []
