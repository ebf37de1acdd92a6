"""The trace of a profiled run, against the rules of the trace event format."""

from __future__ import annotations

import dataclasses
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import torchgauge as tg
from tests.report.measured_sample import DEVICE_NAME, MS, measured_capture, measured_view
from tests.report.sample import HOSTILE, sample_capture, sample_view
from torchgauge.errors import UsageError
from torchgauge.facts import Measured, TraceRecord, View
from torchgauge.report import find_format, render, save
from torchgauge.report.formats import ModuleRange, module_ranges

PHASES = {"M", "X", "C"}


def events(view: View) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(render(view, "trace"))["traceEvents"]
    return found


def slices(found: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [event for event in found if event.get("cat") == category]


def assert_is_a_trace(found: list[dict[str, Any]]) -> None:
    """Every event has its phase, time, process and thread; the slices of a track are nested or disjoint."""
    for event in found:
        assert event["ph"] in PHASES
        assert isinstance(event["name"], str)
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        assert event["ts"] >= 0
    complete = [event for event in found if event["ph"] == "X"]
    assert all(event["dur"] >= 0 for event in complete)
    for _, track in groupby(sorted(complete, key=_track), _track):
        open_until: list[int] = []
        for event in track:
            start, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], event
            open_until.append(end)


def _track(event: dict[str, Any]) -> tuple[int, int]:
    return event["pid"], event["tid"]


def test_the_suffix_names_the_format_and_is_not_plain_json() -> None:
    assert find_format("run.trace.json").name == "trace"
    assert find_format("run.json").name == "json"


def test_every_event_keeps_the_rules_of_the_format() -> None:
    assert_is_a_trace(events(measured_view()))


def test_modules_are_around_their_ops_and_ops_carry_what_is_known_of_them() -> None:
    found = events(measured_view())
    model, stem = slices(found, "module")
    assert (model["name"], model["ts"], model["dur"]) == ("Sample", 0, 62_000)
    assert (stem["name"], stem["ts"], stem["dur"]) == ("stem Sequential", 1000, 4000)
    first, inner, *_ = slices(found, "op")
    assert (first["name"], first["dur"]) == ("aten::convolution", 2000)
    assert first["args"] | {"bytes": 0} == {
        "op": 0, "module": "stem.0", "inputs": "1×3×32×32, 64×3×8×8", "flops": 393_216, "bytes": 0
    }  # fmt: skip
    assert (inner["name"], inner["dur"], "args" in inner) == ("aten::inner", 1000, False)


def test_the_figures_of_an_uncounted_op_are_not_given_as_zero() -> None:
    mystery = next(event for event in slices(events(measured_view()), "op") if event["name"] == "my::mix")
    assert "flops" not in mystery["args"]


def test_kernels_are_on_the_device_and_overlapping_ones_on_separate_tracks() -> None:
    kernels = slices(events(measured_view()), "kernel")
    assert [(event["name"], event["pid"], event["tid"]) for event in kernels] == [
        (DEVICE_NAME, 2, 0), (DEVICE_NAME, 2, 1), (DEVICE_NAME, 2, 0)
    ]  # fmt: skip
    assert kernels[0]["args"] == {"op": 0, "launched by": "aten::convolution", "module": "stem.0"}
    assert "args" not in kernels[2]


def test_memory_is_a_counter_of_the_host_and_of_the_device() -> None:
    counters = [event for event in events(measured_view()) if event["ph"] == "C"]
    assert [(event["pid"], event["ts"], event["args"]["bytes"]) for event in counters] == [
        (1, 1000, 4096), (2, 2000, 1024), (1, 3000, 0)
    ]  # fmt: skip


def test_tracks_are_named() -> None:
    named = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"] for event in events(measured_view())[:5]
    }
    assert named["process_name", 1, 0] == "host: sample.py:Sample"
    assert named["thread_name", 1, 0] == "modules and ops"
    assert named["process_name", 2, 0] == "device: cpu"
    assert named["thread_name", 2, 1] == "stream 7"


def test_names_are_data_whatever_they_hold() -> None:
    capture = measured_capture()
    hostile = 'a"}],"x":[{"\ud800</script>' + HOSTILE
    assert capture.measured is not None
    assert capture.measured.trace is not None
    record = dataclasses.replace(capture.measured.trace, names=tuple([hostile] * len(capture.measured.trace.names)))
    view = View(dataclasses.replace(capture, measured=dataclasses.replace(capture.measured, trace=record)))
    text = render(view, "trace")
    assert text.isascii()
    assert "\x1b" not in text
    assert {event["name"] for event in slices(json.loads(text)["traceEvents"], "op")} == {hostile}


def test_the_trace_says_that_the_run_was_profiled() -> None:
    other = json.loads(render(measured_view(), "trace"))["otherData"]
    assert other["run"] == "one profiled run, with the profiler's overhead"
    assert (other["profiled_run_s"], other["undisturbed_median_s"]) == (0.062, 0.080)


def test_without_a_profiled_run_there_is_no_trace_and_no_file(tmp_path: Path) -> None:
    for view in (sample_view(), View(dataclasses.replace(sample_capture(), measured=Measured({"latency": None})))):
        with pytest.raises(UsageError, match="no profiled run"):
            save(view, tmp_path / "run.trace.json")
    assert list(tmp_path.iterdir()) == []


def test_a_saved_run_can_be_drawn_again(tmp_path: Path) -> None:
    save(measured_view(), tmp_path / "run.json")
    again = tg.load(tmp_path / "run.json")
    assert again.capture.measured == measured_capture().measured
    assert render(again, "trace") == render(measured_view(), "trace")


@pytest.mark.parametrize("change", [{"calls": [[1, "x", 0, 0, 0]]}, {"modules": 3}, {"names": None}])
def test_a_corrupt_trace_is_reported_when_the_run_is_loaded(tmp_path: Path, change: dict[str, Any]) -> None:
    document = json.loads(render(measured_view(), "json"))
    document["trace"] |= change
    (tmp_path / "run.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(tg.FormatError, match="not a complete run"):
        tg.load(tmp_path / "run.json")


def test_modules_that_python_does_not_call_are_ranges_of_their_ops() -> None:
    ops = sample_capture().ops
    record = TraceRecord(
        duration_ns=20 * MS,
        names=("", "op"),
        modules=((0, 20 * MS, 0, 0),),
        # stem.0, an inner call, stem.1, the model itself, blocks.0.fc
        calls=(
            (1 * MS, MS, 1, 0, 0),
            (1 * MS, 1, 1, 0, -1),
            (3 * MS, MS, 1, 0, 1),
            (5 * MS, MS, 1, 0, 2),
            (7 * MS, MS, 1, 0, 3),
        ),
    )
    found = module_ranges(record, ops)
    assert found[0] == ModuleRange("", 0, 20 * MS, 0)
    assert {(entry.path, entry.start_ns // MS, entry.duration_ns // MS) for entry in found[1:]} == {
        ("stem.0", 1, 1), ("stem.1", 3, 1), ("stem", 1, 3), ("blocks", 7, 1), ("blocks.0", 7, 1), ("blocks.0.fc", 7, 1)
    }  # fmt: skip
    assert {(entry.thread, entry.inferred) for entry in found[1:]} == {(1, True)}


def test_inferred_ranges_have_a_track_that_says_so() -> None:
    capture = measured_capture()
    assert capture.measured is not None
    assert capture.measured.trace is not None
    record = dataclasses.replace(capture.measured.trace, modules=capture.measured.trace.modules[:1])
    found = events(View(dataclasses.replace(capture, measured=dataclasses.replace(capture.measured, trace=record))))
    assert_is_a_trace(found)
    assert any(event["args"]["name"].startswith("modules, from the ops") for event in found if event["ph"] == "M")
