"""`tg.forecast`: sources, intervals, closed forms of the two queues, and errors. No GPU is needed."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.cli import main
from torchgauge.errors import FormatError, InputError, UsageError
from torchgauge.facts import TensorSpec
from torchgauge.predict import (
    FOLDER,
    MEASURED,
    KernelTable,
    Layer,
    Place,
    Rates,
    calibrate_kernels,
    device_names,
    interpolate,
    load_table,
    only_place,
    open_table,
    predict_kernel,
    profile_of,
    read_table,
    simulate_queues,
    write_table,
)


def net(width: int = 1024) -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def forecast(model: nn.Module, **options: object) -> tg.Forecast:
    found = tg.forecast(model, **options)  # type: ignore[arg-type]
    assert isinstance(found, tg.Forecast)
    return found


def given(rows: int, width: int = 1024) -> torch.Tensor:
    return torch.empty(rows, width, device="meta")


def test_a_graph_is_the_sum_of_its_kernels_and_modules_sum_to_the_whole() -> None:
    found = forecast(net(), on="h200", inputs=given(4096), execution="graph")
    assert found.time_s == pytest.approx(sum(op["device_s"] for op in found.ops))
    assert found.low_s < found.time_s < found.high_s
    whole = next(module for module in found.modules if module["path"] == "")
    parts = [module for module in found.modules if module["depth"] == 1]
    assert whole["time_s"] == pytest.approx(found.time_s) == pytest.approx(sum(part["time_s"] for part in parts))
    assert found.energy_low_j < found.energy_j < found.energy_high_j  # type: ignore[operator]
    assert found.per_sample["time_s"] == pytest.approx(found.time_s / 4096)


def test_no_forecast_is_faster_than_the_roof_and_larger_takes_longer() -> None:
    times = [forecast(net(), on="h200", inputs=given(rows), execution="graph").time_s for rows in (256, 2048, 16384)]
    assert times == sorted(times)
    assert times[2] > 2 * 16384 * 2 * 4 * 1024 * 1024 / 67e12


def test_one_sample_waits_for_the_host_and_a_large_batch_for_the_device() -> None:
    assert forecast(net(64), on="h200", inputs=given(1, 64)).bound == "host"
    assert forecast(net(), on="h200", inputs=given(32768)).bound == "compute"


@pytest.mark.parametrize("rows", [1, 64, 256, 1024, 4096, 16384])
def test_the_host_is_the_bound_exactly_where_a_faster_device_would_not_help(rows: int) -> None:
    """The time of a run is then the host's, for one row as for many."""
    found = forecast(net(), on="h200", inputs=given(rows))
    assert (found.bound == "host") == (found.host_s > found.device_s)
    assert found.time_s >= max(found.host_s, found.device_s) * 0.99


@pytest.mark.parametrize(
    ("device", "sources"),
    [
        ("h200", {"measured"}),
        ("a100", {"published", "carried over"}),
        ("rtx4090", {"carried over", "data sheet"}),
        ("t4", {"data sheet"}),
    ],
)
def test_every_figure_has_its_source_and_farther_ones_are_less_sure(device: str, sources: set[str]) -> None:
    model = net()
    found = forecast(model, on=device, inputs=given(2048), dtype="bfloat16", execution="graph")
    assert {op["source"] for op in found.ops} <= sources
    near = forecast(model, on="h200", inputs=given(2048), dtype="bfloat16", execution="graph")
    assert found.high_s / found.low_s >= near.high_s / near.low_s


def test_a_small_kernel_is_carried_over_by_latency_and_a_large_one_by_the_roof() -> None:
    """The L4 has a sixteenth of the H200's bandwidth: a full device takes that much longer, a nearly empty one not."""
    ratios = []
    for rows in (1, 1 << 16):
        tensor = TensorSpec((rows, 4096), "float32")
        times = {on: predict_kernel("aten::relu", {"self": tensor}, (tensor,), on).seconds for on in ("h200", "l4")}
        ratios.append(times["l4"] / times["h200"])
    assert ratios[0] < 2
    assert ratios[1] > 10


def test_a_kernel_that_reads_from_the_cache_is_not_slower_elsewhere_than_by_the_roofs() -> None:
    tensor = TensorSpec((1 << 20, 4), "float32")
    times = {
        on: predict_kernel("aten::relu", {"self": tensor}, (tensor,), on, is_cold=False).seconds
        for on in ("h200", "l4")
    }
    assert times["l4"] / times["h200"] < 16.5


def test_compiled_is_no_slower_than_a_graph_and_training_takes_longer_than_inference() -> None:
    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x * 2 + 1).sigmoid()

    times = {
        execution: forecast(Chain(), on="h200", inputs=given(1 << 16), execution=execution).time_s
        for execution in ("graph", "compiled")
    }
    assert times["compiled"] < 0.5 * times["graph"]
    runs = {mode: forecast(net(), on="h200", inputs=given(4096), mode=mode).time_s for mode in ("inference", "train")}
    assert runs["train"] > 2 * runs["inference"]


def test_several_devices_and_batches_are_a_list_and_a_table() -> None:
    found = tg.forecast(net(), on=["h200", "l4"], input_size=(1, 1024), batch=[1, 8], price={"h200": 3.6})
    assert isinstance(found, list)
    assert [(one.device, one.batch) for one in found] == [("h200", 1), ("h200", 8), ("l4", 1), ("l4", 8)]
    assert found[1].per_sample["price_per_million"] == pytest.approx(found[1].time_s / 8 * 1e3)
    pytest.importorskip("pandas")
    assert list(found.to_dataframe()["batch"]) == [1, 8, 1, 8]


def test_a_second_device_and_a_second_forecast_look_up_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A width that no other test has; the chips differ, and with them the memory of kernels."""
    looked_up: list[int] = []
    original = KernelTable._fresh_estimates

    def counted(table: KernelTable, places: list[Place]) -> object:
        looked_up.append(len(places))
        return original(table, places)

    monkeypatch.setattr(KernelTable, "_fresh_estimates", counted)
    options = {"inputs": torch.empty(48, 1016, device="meta"), "mode": "train"}
    forecast(net(1016), on="h200", **options)
    assert sum(looked_up) > 0
    looked_up.clear()
    for device in ("a100", "h200"):
        forecast(net(1016), on=device, **options)
    assert sum(looked_up) == 0


@pytest.mark.parametrize(
    "options", [{"on": "h20x"}, {"on": "24GiB"}, {"execution": "fast"}, {"mode": "test"}, {"batch": 0},
                {"batch": "some"}, {"price": {"a100": 1.0}}]
)  # fmt: skip
def test_invalid_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        tg.forecast(net(), **({"on": "h200", "input_size": (1, 1024)} | options))  # type: ignore[arg-type]


def test_this_machine_needs_a_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="--calibrate"):
        tg.forecast(net(), on="cpu", inputs=given(8))
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    with pytest.raises(FormatError):
        open_table(tmp_path / "bad.npz")


def test_a_disturbed_round_of_a_calibration_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path))
    place = Place("stream", "unary", (20.0, 20.0, 20.0, 20.0), 1e6, "float32", 1e6, 1e6)
    with torch.device("meta"):
        layers = [Layer(nn.ReLU(), (torch.empty(8),), place) for _ in range(30)]
    rounds: dict[int, list[float]] = {}

    def best_seconds(layer: Layer, device: str, clock: object) -> float:
        times = rounds.setdefault(id(layer), [])
        times.append(1.0 if len(times) == 1 else 1e-3)  # the second round is disturbed
        return times[-1]

    monkeypatch.setattr("torchgauge.predict.calibration.drawn", lambda device: iter(layers))
    monkeypatch.setattr(Layer, "best_seconds", best_seconds)
    rates = Rates({"float32": 1e11}, 1e10, 2e-6)
    table = open_table(calibrate_kernels("cpu", "a processor", rates, "now", seconds=60))
    assert all(len(times) == 3 for times in rounds.values())
    assert 2 ** table.estimate(place).log_s == pytest.approx(1e-3, rel=0.01)


def test_a_layer_of_a_calibration_holds_memory_only_while_it_is_measured() -> None:
    with torch.device("meta"):
        linear = nn.Linear(64, 64)
        shown = torch.empty(4, 64)
    place = only_place(linear, (shown,))
    assert place is not None
    with torch.inference_mode():
        assert all(Layer(linear, (shown,), place).best_seconds("cpu") > 0 for _ in range(2))
    assert {tensor.device.type for tensor in linear.parameters()} == {"meta"}


def test_a_forecast_for_a_processor_leaves_the_recursion_limit(tmp_path: Path) -> None:
    path = tmp_path / "cpu.npz"
    path.write_bytes(
        write_table(KernelTable("a processor", Rates({"float32": 1e11}, 1e10, 2e-6), {}, facts={"kind": "cpu"}))
    )
    limit = sys.getrecursionlimit()
    forecast(net(), on=str(path), inputs=given(8))
    assert sys.getrecursionlimit() == limit


def test_a_calibration_of_a_gpu_is_carried_as_a_file(tmp_path: Path) -> None:
    """A file of an unknown GPU brings its kernels; of one whose kernels the package has, its host alone."""
    host = {"forward_s": 4e-3, "train_s": 1.2e-2, "plan_s": 0.1, "spread": 0.1}
    gpu = {"multiprocessors": 132, "major": 9, "minor": 0, "threads": 2048, "bytes": 80_000_000_000}
    rates = Rates({"float32": 60e12}, 3e12, 2e-6)
    found = {}
    for title in ("Somebody's GPU", "NVIDIA H200"):
        facts = {"kind": "cuda", "title": title, "host": host, "gpu": gpu}
        path = tmp_path / f"{title[-4:]}.npz"
        path.write_bytes(write_table(KernelTable(title, rates, {}, facts=facts)))
        found[title] = forecast(net(), on=str(path), inputs=given(512), execution="graph")
    packaged = forecast(net(), on="h200", inputs=given(512), execution="graph")
    assert found["NVIDIA H200"].time_s == packaged.time_s
    assert found["Somebody's GPU"].time_s != packaged.time_s
    assert {one.fit for one in found.values()} == {"fits"}
    assert all(one.host_source == "as calibrated" for one in found.values())


def test_the_two_queues() -> None:
    # The device is idle until the first launch, then works off what was launched.
    never, at_once = [False, False], [0.0, 0.0]
    assert simulate_queues([5.0, 5.0], [1.0, 1.0], at_once, never, is_serial=False) == [6.0, 11.0]
    assert simulate_queues([1.0, 1.0], [5.0, 5.0], at_once, never, is_serial=False) == [6.0, 11.0]
    assert simulate_queues([1.0, 0.0], [5.0, 2.0], at_once, never, is_serial=True) == [6.0, 8.0]
    # The host asks for a value after the first op, and launches the second when it has it.
    assert simulate_queues([5.0, 5.0], [1.0, 1.0], at_once, [True, False], is_serial=False) == [6.0, 12.0]
    # Behind a long kernel the queue is full after 1,024 launches: the host makes the last ones ready afterwards.
    devices, hosts = [1e6, *[1.0] * 1030], [*[1.0] * 1030, 5000.0]
    ends = simulate_queues(devices, hosts, [0.0] * 1031, [False] * 1031, is_serial=False)
    assert ends[-1] == pytest.approx(1e6 + 5000, abs=20)
    # Of ten kernels of one op the device runs the first while the host launches the others.
    assert simulate_queues([8.0], [10.0], [9.0], [False], is_serial=False) == [10.0]
    assert simulate_queues([30.0], [10.0], [9.0], [False], is_serial=False) == [31.0]


def test_interpolation_finds_what_was_measured_and_a_line_between() -> None:
    rows = np.array([[float(x), float(y)] for x in range(4) for y in range(4)], np.float32)
    values = (0.3 * rows[:, 0] - 0.2 * rows[:, 1]).astype(np.float32)
    assert interpolate(rows, values, np.array([2, 1], np.float32))[0] == pytest.approx(0.4, abs=1e-6)
    between, distance = interpolate(rows, values, np.array([1.5, 1.5], np.float32))
    assert between == pytest.approx(0.15, abs=0.03)
    assert distance == pytest.approx(0.5**0.5)


def test_a_table_is_written_and_read_again_and_other_files_are_refused() -> None:
    place = Place("stream", "add 4", (10.0, 10.5), 1e6, "float32", 1e6)
    table = KernelTable.of("toy", Rates({"float32": 1e12}, 1e12, 1e-6), [(place, 5e-6)], facts={"kind": "cpu"})
    again = read_table(write_table(table), "toy.npz")
    assert 2 ** again.estimate(place).log_s == pytest.approx(5e-6, rel=1e-3)
    with pytest.raises(FormatError):
        read_table(b"PK no archive", "x.npz")


def test_the_tables_of_the_package_are_small_and_cover_their_own_kernels() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("*.npz")) < 2e6
    table = load_table("h200")
    assert table is not None
    held_out = table.facts["held_out"]
    assert {"matmul", "convolution", "attention", "stream"} <= set(held_out)
    assert all(0.85 <= row["coverage"] <= 0.95 for row in held_out.values())


def test_a_kernel_without_a_model() -> None:
    a, b = TensorSpec((4096, 4096), "bfloat16"), TensorSpec((4096, 4096), "bfloat16", (1, 4096))
    found = predict_kernel("aten::mm", {"self": a, "mat2": b}, (a,), "h200")
    # The product of 137 GFLOP takes 140 µs at the peak; measured elsewhere: 168 µs.
    assert 1.39e-4 < found.seconds < 2.6e-4
    assert found.source in (MEASURED, "published")


@pytest.mark.parametrize(
    ("rows", "groups", "depth", "columns"), [(4096, 8, 1024, 14336), (64, 8, 768, 3072), (20000, 60, 2048, 1408)]
)
@pytest.mark.parametrize("side", ["rows", "columns", "depth"])
def test_a_grouped_product_takes_about_as_long_as_its_groups(
    rows: int, groups: int, depth: int, columns: int, side: str
) -> None:
    """Of all rows with the matrices of their groups, and the two gradients of that."""
    data, weights = TensorSpec((rows, depth), "bfloat16"), TensorSpec((groups, depth, columns), "bfloat16")
    made, offsets = TensorSpec((rows, columns), "bfloat16"), TensorSpec((groups,), "int32")
    arguments = {
        "rows": ({"self": data, "mat2": weights, "offs": offsets}, made),
        "columns": (
            {
                "self": TensorSpec((groups, columns, depth), "bfloat16"),
                "mat2": TensorSpec((depth, rows), "bfloat16"),
                "offs": offsets,
            },
            TensorSpec((columns, rows), "bfloat16"),
        ),
        "depth": (
            {"self": TensorSpec((depth, rows), "bfloat16", (1, depth)), "mat2": made, "offs": offsets},
            weights,
        ),
    }[side]
    found = predict_kernel("aten::_grouped_mm", arguments[0], (arguments[1],), "h200")
    least = max(2 * rows * depth * columns / 989.4e12, 2 * groups * depth * columns / 4.8e12)
    assert least < found.seconds < 8 * least + 2e-5


def test_a_kind_of_kernel_that_was_not_measured_is_not_said_to_be_and_stays_near_the_roofline() -> None:
    """Here an op of torch that the tables have no kernel of, and one with a type that they do not have."""
    for shape in ((64,), (1 << 26,), (8192, 8192), (4, 3, 2048, 2048)):
        for dtype in ("float32", "float8_e5m2"):
            tensor = TensorSpec(shape, dtype)
            for op in ("aten::_nested_from_padded", "aten::special_zeta", "aten::histc"):
                found = predict_kernel(op, {"self": tensor}, (tensor,), "h200")
                assert found.source != MEASURED
                assert 0.4 * found.roof_s <= found.seconds < 24 * (found.roof_s + 2e-6)
                assert found.unsure >= 1


def test_the_command_writes_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\ndef net():\n    return nn.Linear(64, 64)\n")
    paths = {name: tmp_path / f"f.{name}" for name in ("json", "svg", "txt", "html", "md", "tex", "csv")}
    command = ["forecast", f"{tmp_path}/net.py:net", "--input", "8x64", "--on", "h200,l4", "--price", "h200=3"]
    assert main([*command, *(word for path in paths.values() for word in ("-o", str(path)))]) == 0
    assert "Bound" in capsys.readouterr().out
    written = {name: path.read_text() for name, path in paths.items()}
    assert [row["device"] for row in json.loads(written["json"])["forecast"]] == ["h200", "l4"]
    assert written["svg"].startswith("<svg")
    assert "<svg" in written["html"]
    for name in ("txt", "html", "md", "tex"):
        assert all(word in written[name] for word in ("Per million", "Where the time goes", "aten::", "l4"))
    with paths["csv"].open() as file:
        rows = list(csv.DictReader(file))
    assert [row["device"] for row in rows] == ["h200", "l4"]
    assert float(rows[0]["per_sample_price_per_million"]) > 0
    assert rows[1]["per_sample_price_per_million"] == ""
    assert main([*command, "--price", "h200"]) == 2


def test_a_result_saves_itself(tmp_path: Path) -> None:
    found = forecast(net(), on="h200", inputs=given(64))
    found.save(tmp_path / "one.md")
    assert str(found).splitlines()[0] in (tmp_path / "one.md").read_text()
    with pytest.raises(UsageError, match="must end in one of"):
        found.save(tmp_path / "one.pdf")


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "measured_s"),
    # Kernels of Llama 3.2 1B and Qwen 2.5 3B in a prompt of 16 × 2048 tokens, from a profile on an H200.
    [(32768, 2048, 11008, 1966e-6), (32768, 2048, 8192, 1431e-6), (8192, 2048, 11008, 488e-6),
     (8192, 2048, 8192, 362e-6)],
)  # fmt: skip
def test_products_with_aligned_rows_are_not_taken_for_those_of_an_odd_vocabulary(
    rows: int, depth: int, columns: int, measured_s: float
) -> None:
    """A product with 50,257 columns is ten times as slow: no neighbour of one whose rows all kernels can load."""
    given = TensorSpec((rows, depth), "bfloat16")
    weight = TensorSpec((depth, columns), "bfloat16", stride=(1, depth))
    found = predict_kernel(
        "aten::mm", {"self": given, "mat2": weight}, (TensorSpec((rows, columns), "bfloat16"),), "h200"
    )
    assert found.seconds == pytest.approx(measured_s, rel=0.1)


@pytest.mark.parametrize("device", device_names())
def test_every_named_device_has_a_speed(device: str) -> None:
    found = predict_kernel(*product(4096, 4096, 4096), device)
    # 137 GFLOP: between the B200's peak and a T4 at a tenth of its float32 rate.
    assert 5e-5 < found.seconds < 0.2


def product(rows: int, columns: int, depth: int) -> tuple[str, dict[str, TensorSpec], tuple[TensorSpec, ...]]:
    left, right = TensorSpec((rows, depth), "bfloat16"), TensorSpec((depth, columns), "bfloat16", (1, depth))
    return "aten::mm", {"self": left, "mat2": right}, (TensorSpec((rows, columns), "bfloat16"),)


def test_the_interval_of_energy_has_that_of_the_time() -> None:
    found = tg.forecast(nn.Linear(4096, 4096), on="h200", inputs=torch.empty(4096, 4096), execution="graph")
    energy = profile_of("h200").energy
    assert isinstance(found, tg.Forecast)
    assert energy is not None
    assert found.energy_j is not None
    ends = (energy.low * found.energy_j, energy.high * found.energy_j)
    assert (found.energy_low_j or 0.0) < ends[0] < ends[1] < (found.energy_high_j or 0.0)


@pytest.mark.parametrize("depth", [128, 1024, 8192])
def test_published_products_are_found_by_their_sizes(depth: int) -> None:
    found = predict_kernel(*product(4096, 4096, depth), "a100")
    assert found.source == "published"
    # The A100's peak is 312 TFLOP/s, its bandwidth 2 TB/s; large products reach more than a third of one of them.
    assert found.roof_s < found.seconds < 3 * found.roof_s + 1e-5


@pytest.mark.parametrize("keys", [512, 4096])
def test_one_query_that_cudnn_attends_is_bound_by_reading_the_keys(keys: int) -> None:
    query, key = (TensorSpec((16, 32, length, 128), "bfloat16") for length in (1, keys))
    given = {"query": query, "key": key, "value": key, "is_causal": False, "dropout_p": 0.0}
    found = predict_kernel("aten::_scaled_dot_product_cudnn_attention", given, (query,), "h200")
    read_s = 2 * 16 * 32 * keys * 128 * 2 / 4.8e12
    assert read_s < found.seconds < 4 * read_s + 2e-5


def test_attention_takes_whole_tiles_and_waves() -> None:
    def seconds(length: int) -> float:
        one = TensorSpec((4, 16, length, 64), "bfloat16")
        given = {"query": one, "key": one, "value": one, "is_causal": False, "dropout_p": 0.0}
        return predict_kernel("aten::_scaled_dot_product_cudnn_attention", given, (one,), "h200").seconds

    # 1,025 queries need a ninth tile of 128 for one of them: more than the work alone would say.
    assert seconds(1025) > 1.02 * seconds(1024)


def test_steps_of_recurrent_layers_wait_for_the_host_unless_they_are_in_a_graph() -> None:
    with torch.device("meta"):
        model = nn.LSTM(512, 512, batch_first=True)
    inputs = torch.empty(8, 400, 512, device="meta")
    times = {name: forecast(model, on="h200", inputs=inputs, execution=name) for name in ("eager", "graph")}
    # cuDNN launches every step: about 15 µs of the host each, of the device 3 to 12.
    assert 400 * 3e-6 < times["graph"].time_s < 400 * 12e-6
    assert times["eager"].time_s > 1.2 * times["graph"].time_s
    twice = forecast(model, on="h200", inputs=torch.empty(8, 800, 512, device="meta"), execution="graph")
    assert twice.time_s == pytest.approx(2 * times["graph"].time_s, rel=0.2)


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_norms_and_cells_are_the_fused_kernels_of_cuda(mode: str) -> None:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.lstm, self.gru = nn.RMSNorm(64), nn.LSTMCell(64, 64), nn.GRUCell(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden, _ = self.lstm(self.norm(x))
            return self.gru(x, hidden)

    with torch.device("meta"):
        model = Cells()
    found = forecast(model, on="h200", inputs=given(16, 64), execution="graph", mode=mode)
    ops = [op["op"] for op in found.ops]
    names = ["aten::_fused_rms_norm", "aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_gru_cell"]
    assert [op for op in ops if op in names] == names
    backward = ["aten::_thnn_fused_gru_cell_backward", "aten::_thnn_fused_lstm_cell_backward_impl",
                "aten::_fused_rms_norm_backward"]  # fmt: skip
    assert [op for op in ops if op in backward] == (backward if mode == "train" else [])
    assert not {"aten::rsqrt", "aten::sigmoid_"} & set(ops)


def test_ops_on_nothing_take_no_time_on_the_device() -> None:
    # An expert that no token chose.
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Unflatten(0, (-1, 4)), nn.Conv1d(4, 4, 3))
    for given in (torch.randn(0, 8), torch.randn(400, 8)):
        made = tg.forecast(model, on="h200", inputs=(given,), execution="graph")
        assert isinstance(made, tg.Forecast)
        assert (made.time_s > 0) == (len(given) > 0)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_step_counts_of_optimizers_are_read_on_the_host(optimizer: str) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
    options = {"mode": "train", "optimizer": optimizer, "inputs": torch.randn(4, 16)}
    eager, graph = (forecast(model, on="h200", execution=name, **options) for name in ("eager", "graph"))
    assert not [op for op in graph.ops if op["op"] == "aten::_local_scalar_dense" and op["device_s"]]
    assert eager.time_s > graph.time_s > 0
