"""The measured sections of the text report."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.report.measured_sample import COUNTERS, SWEEP, SYSTEM, THREADS, figures, latency, measured_view
from tests.report.sample import sample_capture, sample_view
from torchgauge.facts import Measured, View
from torchgauge.report import Options, line_width, render
from torchgauge.report.formats import report_lines

GOLDEN = Path(__file__).parent / "golden" / "measured.txt"
EVERYTHING: dict[str, Any] = {"sweep": SWEEP, "threads": THREADS, "system": SYSTEM, "counters": COUNTERS}


def test_the_text_equals_the_golden_file(request: pytest.FixtureRequest) -> None:
    text = render(measured_view(**EVERYTHING), "text", Options(width=80))
    if request.config.getoption("--regenerate"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [72, 80, 100, 200])
def test_no_line_is_wider_than_asked(width: int) -> None:
    assert max(line_width(line) for line in report_lines(measured_view(**EVERYTHING), Options(width=width))) <= width


def test_without_a_measurement_the_report_says_nothing_of_time() -> None:
    text = render(sample_view())
    assert "Measured" not in text
    assert "Self" not in text


def test_one_run_does_not_pass_for_certainty() -> None:
    text = render(measured_view(latency=latency(runs=1)))
    assert "80.0 ms  one undisturbed run: its variation is unknown" in text
    assert "±" not in text


def test_a_failure_is_reported_with_the_measurements_before_it() -> None:
    known = figures(sample_capture())
    kept: Any = {name: known[name] for name in ("latency", "device", "threads", "surroundings", "notes")}
    measured = Measured(kept | {"failure": "RuntimeError: out of \x1b[31mluck"})
    text = render(View(dataclasses.replace(sample_capture(), measured=measured)))
    assert "median of 40 undisturbed runs" in text
    assert r"- The measurement ended early: RuntimeError: out of \x1b[31mluck" in text
    assert "Measured memory" not in text


def test_a_run_that_never_ended_has_only_its_failure() -> None:
    measured = Measured({"latency": None, "device": "cuda:0", "failure": "the device ran out of memory"})
    text = render(View(dataclasses.replace(sample_capture(), measured=measured)))
    assert "Measured on cuda:0\n- The measurement ended early: the device ran out of memory\n" in text


def test_the_hosts_time_of_a_call_is_next_to_the_median() -> None:
    text = render(measured_view(latency=latency(0.008) | {"host_s": 0.006}))
    assert "Host        6.00 ms  until the call returns, 75.0 % of the median" in text


def test_an_idle_device_has_its_own_line() -> None:
    profile = figures(sample_capture())["profile"] | {"device_s": 0.05, "device_idle_s": 0.03, "kernels": 3}
    text = render(measured_view(profile=profile, device="cuda:0"))
    assert "Device idle   30.0 ms  37.5 %: no kernel ran" in text
    assert "device time of profiled runs" in text


def test_cuda_memory_shows_tensors_and_reserved_memory() -> None:
    cuda = {"cuda_before_bytes": 2**20, "cuda_allocated_peak_bytes": 2**21, "cuda_reserved_peak_bytes": 2**22}
    text = render(measured_view(memory={"allocated_peak_bytes": 2**20, **cuda}))
    assert "CUDA allocated     2.00 MiB  in tensors at most; 1.00 MiB before the run" in text
    assert "CUDA reserved      4.00 MiB  taken from the driver" in text


def test_phases_and_settings_are_stated() -> None:
    phases = {"forward": 0.001, "backward": 0.002, "optimizer": 0.0005}
    text = render(measured_view(phases=phases, settings={"threads": 2, "memory_fraction": None, "budget_s": 10.0}))
    assert "Phases      forward 1.00 ms, backward 2.00 ms, optimizer 500 µs" in text
    assert "Settings    threads 2, budget 10 s" in text


def test_a_training_step_shows_where_each_phase_spends_its_time() -> None:
    own = {f"blocks.{index}.fc": {"forward": 0.001, "backward": 0.002} for index in range(3)} | {
        "": {"optimizer": 0.004}
    }
    text = render(measured_view(module_phases=own))
    assert "blocks.0–2.fc       3  3.00 ms   6.00 ms          -" in text
    assert "(the model itself)  1        -         -    4.00 ms" in text
    assert "Slowest modules by phase" not in render(measured_view())


def test_profiled_runs_may_happen_to_be_faster() -> None:
    profile = figures(sample_capture())["profile"]
    for share, reported in ((-0.03, "which took 3.0 % less; they"), (None, "which take longer; they")):
        text = render(measured_view(profile=profile | {"overhead_share": share}))
        assert reported in " ".join(text.split())


def test_module_times_of_a_machine_that_changed_are_not_trusted() -> None:
    reported = "Those runs took 58.8 % of the median run"
    capture = measured_view().capture
    assert reported in " ".join(render(View(capture)).split())
    assert capture.measured is not None
    steady: Any = {path: {**row, "time_share": row["time_s"] / 0.047} for path, row in capture.measured.modules.items()}
    measured = dataclasses.replace(capture.measured, modules=steady)
    assert "Those runs took" not in render(View(dataclasses.replace(capture, measured=measured)))


def test_a_device_without_known_limits_says_how_to_measure_them() -> None:
    view = measured_view()
    assert view.capture.measured is not None
    ops: Any = {index: {**row, "roof_share": None} for index, row in view.capture.measured.ops.items()}
    unknown = dataclasses.replace(view.capture.measured, ops=ops)
    text = render(View(dataclasses.replace(view.capture, measured=unknown)))
    assert "torchgauge system --calibrate" in text
    assert "of roof" not in text


def test_a_sweep_has_a_bar_for_every_point_that_ran() -> None:
    lines = render(measured_view(sweep=SWEEP), "text", Options(width=80)).splitlines()
    start = lines.index("Sweep over batch")
    bars = [line.count("█") for line in lines[start + 2 : start + 6]]
    assert bars[1] == pytest.approx(2 * bars[0], abs=1)
    assert bars[2] == pytest.approx(4 * bars[0], abs=3)
    assert bars[3] == 0
    assert lines[start + 6] == "- batch 8: the device ran out of memory"


def test_the_notebook_shows_latency_and_times() -> None:
    html = render(measured_view(), "fragment")
    assert "Latency" in html
    assert ">Self<" in html


def test_times_can_be_columns_and_order() -> None:
    text = render(measured_view(), "text", Options(columns=("time_s",), sort="time_s", depth=1))
    assert text.index("├─ blocks ModuleList") < text.index("├─ stem Sequential")
    assert "36.0 ms" in text


def test_no_ranking_is_printed_where_too_little_of_the_time_is_attributed() -> None:
    calls = [{"op": "aten::mm", "calls": 8, "time_s": 0.02}, {"op": "aten::add", "calls": 1, "time_s": 0.01}]

    def attributed(share: float) -> str:
        profile = figures(sample_capture())["profile"] | {"attributed_share": share, "unjoined_calls": calls}
        return render(measured_view(profile=profile))

    assert "Slowest ops, equal calls" in attributed(0.9)
    text = attributed(0.37)
    assert "Slowest ops, equal calls" not in text
    assert "by their own measured time" not in text
    assert "37.0 % of the time in calls could be attributed" in " ".join(text.split())
    assert "8 calls of aten::mm, 1 call of aten::add" in " ".join(text.split())
    assert "8 × aten::mm 20.0 ms" in " ".join(text.split())
