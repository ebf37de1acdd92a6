from __future__ import annotations

import copy
import csv
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.compat.profiled import FEW, METHODS, Unused, arguments, net, x
from torchgauge.compat.moduleprofiler import ModuleProfiler, ops_to_flops, realtime_factor

PARAMS = [
    "type", "trainable_params", "trainable_params_dtype", "trainable_params_size_bits", "nontrainable_params",
    "nontrainable_params_dtype", "nontrainable_params_size_bits", "trainable_params_percent",
    "nontrainable_params_percent",
]  # fmt: skip
MACHINE = ["intraop_threads", "interop_threads", "host_name", "os", "os_release", "cpu_count", "total_memory", "gpu"]

FIGURES = [f"inference_time_{figure}_ms" for figure in ("mean", "max", "min", "std", "median")]
TOTAL_FIGURES = [f"inference_time_{figure}_ms" for figure in ("mean", "min", "max", "std", "median")]


def test_parameters_are_counted_apart_by_whether_they_are_trained() -> None:
    model = net()
    model[0].weight.requires_grad_(False)
    found = ModuleProfiler().count_params(model)
    assert list(found) == ["__root__", "0", "1", "2"]
    assert [list(spec) for spec in found.values()] == [PARAMS] * 4
    assert found["0"] == {
        "type": "Linear",
        "trainable_params": 4,
        "trainable_params_dtype": torch.float32,
        "trainable_params_size_bits": 128,
        "nontrainable_params": 32,
        "nontrainable_params_dtype": torch.float32,
        "nontrainable_params_size_bits": 1024,
        "trainable_params_percent": 4 / 46,
        "nontrainable_params_percent": 32 / 46,
    }


@pytest.mark.parametrize("options", [{}, {"param_size": False}, {"param_dtype": False}, {"percent": False}])
def test_parameters_are_those_of_the_real_package(options: dict[str, bool]) -> None:
    original = pytest.importorskip("moduleprofiler").ModuleProfiler()
    model = net()
    model[2].requires_grad_(False)
    expected = original.count_params(copy.deepcopy(model), **options)
    found = ModuleProfiler().count_params(model, **options)
    assert found == expected
    assert [list(spec) for spec in found.values()] == [list(spec) for spec in expected.values()]


def test_a_model_without_parameters_has_no_shares() -> None:
    spec = ModuleProfiler().count_params(nn.ReLU())["__root__"]
    assert (spec["trainable_params_percent"], spec["nontrainable_params_percent"]) == (0.0, 0.0)


def test_bits_are_those_of_each_parameters_own_type() -> None:
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(4, 2, bias=False).double())
    spec = ModuleProfiler().count_params(model)["__root__"]
    assert spec["trainable_params_size_bits"] == 32 * 32 + 8 * 64
    assert spec["trainable_params_dtype"] == torch.float64


@pytest.mark.parametrize("method", METHODS)
def test_tables_have_the_columns_of_the_real_package(method: str) -> None:
    original = pytest.importorskip("moduleprofiler").ModuleProfiler()
    args, options = arguments(method)
    for form in [{"aggr": True}, {"aggr": False}] if "time" in method else [{}]:
        expected = getattr(original, f"{method}_df")(*copy.deepcopy(args), **options, **form)
        assert list(getattr(ModuleProfiler(), f"{method}_df")(*args, **options, **form)) == list(expected)


def test_tables_have_the_documented_columns() -> None:
    profiler = ModuleProfiler()
    assert list(profiler.count_params_df(net())) == ["module", *PARAMS]
    assert list(profiler.trace_io_sizes_df(net(), x())) == ["module", "type", "input_size", "output_size"]
    assert list(profiler.estimate_ops_df(net(), x())) == ["module", "type", "ops"]
    assert list(profiler.estimate_inference_time_df(net(), x(), **FEW)) == ["module", "type", *FIGURES, *MACHINE]
    raw = profiler.estimate_inference_time_df(net(), x(), aggr=False, **FEW)
    assert list(raw) == ["module", "type", "inference_time_ms", *MACHINE]
    total = profiler.estimate_total_inference_time_df(net(), x(), aggr=True, **FEW)
    assert list(total) == ["module", "type", *MACHINE, *TOTAL_FIGURES]
    raw_total = profiler.estimate_total_inference_time_df(net(), x(), **FEW)
    assert list(raw_total) == ["module", "type", *MACHINE, "inference_time_ms"]


def test_raw_rows_have_the_first_runs_and_statistics_do_not() -> None:
    profiler = ModuleProfiler()
    found = profiler.estimate_inference_time(net(), x(), num_iters=6, drop_first=2)
    for spec in found.values():
        times = spec["inference_time_ms"]
        kept = times[2:]
        assert len(times) == 6
        assert spec["inference_time_mean_ms"] == pytest.approx(sum(kept) / 4)
        assert (spec["inference_time_min_ms"], spec["inference_time_max_ms"]) == (min(kept), max(kept))
        assert spec["inference_time_std_ms"] == pytest.approx(torch.tensor(kept, dtype=torch.float64).std().item())
    assert len(profiler.estimate_inference_time_df(net(), x(), num_iters=6, drop_first=2, aggr=False)) == 4 * 6


def test_total_times_leave_the_first_runs_out() -> None:
    profiler = ModuleProfiler()
    (spec,) = profiler.estimate_total_inference_time(net(), x(), num_iters=6, drop_first=2).values()
    assert len(spec["inference_time_ms"]) == 4
    assert len(profiler.estimate_total_inference_time_df(net(), x(), num_iters=6, drop_first=2)) == 4


def test_a_module_takes_at_least_as_long_as_its_children() -> None:
    found = ModuleProfiler().estimate_inference_time(net(), x(), **FEW)
    times = {name: spec["inference_time_ms"] for name, spec in found.items()}
    for run in range(4):
        assert times["__root__"][run] >= sum(times[name][run] for name in ("0", "1", "2"))


def test_a_module_that_is_never_called_has_no_figures_and_stops_nothing() -> None:
    profiler = ModuleProfiler()
    never = profiler.estimate_inference_time(Unused(), x(), **FEW)["never"]
    assert (never["inference_time_ms"], never["inference_time_mean_ms"]) == ([], None)
    assert profiler.estimate_ops(Unused(), x())["never"] == {"type": "Linear", "ops": None}
    assert profiler.trace_io_sizes(Unused(), x())["never"]["input_size"] is None
    assert set(profiler.estimate_inference_time_df(Unused(), x(), aggr=False, **FEW).module) == {"__root__", "used"}


@pytest.mark.parametrize("method", METHODS)
def test_files_hold_the_table(method: str, tmp_path: Path) -> None:
    args, options = arguments(method)
    profiler = ModuleProfiler()
    frame = getattr(profiler, f"{method}_df")(*args, **options)
    getattr(profiler, f"{method}_csv")(str(tmp_path / "plain"), *args, **options)
    getattr(profiler, f"{method}_html")(tmp_path / "table.html", *args, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain.csv", "table.html"]
    with (tmp_path / "plain.csv").open(encoding="utf-8", newline="") as file:
        header, *body = csv.reader(file)
    assert header == list(frame)
    assert [row[0] for row in body] == list(frame.module)
    html = (tmp_path / "table.html").read_text(encoding="utf-8")
    assert all(f"<th>{column}</th>" in html for column in frame)


@pytest.mark.parametrize("method", METHODS)
def test_latex_is_the_methods_own_table(method: str) -> None:
    args, options = arguments(method)
    profiler = ModuleProfiler()
    text = getattr(profiler, f"{method}_latex")(*args, **options)
    columns = list(getattr(profiler, f"{method}_df")(*args, **options))
    assert " & ".join(columns) in text
    assert f"\n & {columns[0]}" in getattr(profiler, f"{method}_latex")(*args, index=True, **options)


def _said(profiler: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], set[str]]:
    """The lines a verbose profiler prints, and the names and units of its progress bars."""
    profiler.count_params_csv(str(folder / "params.csv"), net())
    profiler.trace_io_sizes(net(), x(), eval=True)
    profiler.estimate_ops(net().eval(), x())
    profiler.estimate_inference_time(net(), x(), **FEW)
    profiler.estimate_total_inference_time(net(), x(), **FEW)
    captured = capsys.readouterr()
    bars = re.findall(r"(?:^|\r)(\w[\w ]*): .*?([a-z]+)(?:/s|\b)", captured.err)
    return re.sub(r"\x1b\[\d+m", "", captured.out).splitlines(), {name for name, _ in bars}


def test_verbose_says_and_shows_what_the_real_package_does(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    original = pytest.importorskip("moduleprofiler")
    said, bars = _said(ModuleProfiler(verbose=True, ts_fmt="at %Y"), tmp_path, capsys)
    expected, expected_bars = _said(original.ModuleProfiler(verbose=True, ts_fmt="at %Y"), tmp_path, capsys)
    assert said == expected
    assert "Setting module Sequential to eval mode" in said[3]
    assert bars == expected_bars == {"Counting parameters", "Measuring inference time"}


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    ModuleProfiler().estimate_ops(net(), x())
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize("hop", [None, 256, 100])
def test_rates_of_frames_are_those_of_the_real_package(hop: int | None) -> None:
    frames = (16000 - 512) / (hop or 512) + 1
    assert ops_to_flops(1000, 16000, 512, hop) == pytest.approx(1000 * frames)
    assert realtime_factor(2.0, 16000, 512, hop) == pytest.approx(1 / (0.002 * frames))
    assert realtime_factor(2.0, 16000, 512, hop, inverse=True) == pytest.approx(0.002 * frames)
    original = pytest.importorskip("moduleprofiler.utils")
    assert ops_to_flops(1000, 16000, 512, hop) == original.ops_to_flops(1000, 16000, 512, hop)
    assert realtime_factor(2.0, 16000, 512, hop) == pytest.approx(original.realtime_factor(2.0, 16000, 512, hop))


def test_a_frame_longer_than_a_second_is_refused() -> None:
    with pytest.raises(ValueError, match="no frame of 512"):
        ops_to_flops(1000, 500, 512)
    assert ops_to_flops(1000, 512, 512) == 1000


def test_devices_are_named_in_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"device {index}")
    found = ModuleProfiler().estimate_total_inference_time(nn.ReLU(), torch.ones(1), num_iters=2, drop_first=1)
    assert found["__root__"]["gpu"] == ["device 0", "device 1"]


def test_the_time_of_a_frame_can_be_given_by_either_name() -> None:
    documented = realtime_factor(inference_time_ms=2.0, sample_rate=16000, frame_size=512)
    released: dict[str, Any] = {"inference_time": 2.0}
    assert realtime_factor(sample_rate=16000, frame_size=512, **released) == documented == 16.0
