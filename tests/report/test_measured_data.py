"""The data behind the measured sections, against the closed forms of the measured sample."""

from __future__ import annotations

import dataclasses

import pytest

from tests.report.measured_sample import (
    MEDIAN_S,
    MS,
    OP_S,
    SWEEP,
    WORKSPACE,
    latency,
    measured_capture,
    measured_view,
    trace,
)
from tests.report.sample import BLOCKS, HIDDEN, LINEAR_MACS, sample_capture, sample_view
from torchgauge.facts import TraceRecord, View
from torchgauge.facts.plausibility import interval_share
from torchgauge.report import (
    BY_TIME,
    DEFAULT_COLUMNS,
    MEASURED_COLUMNS,
    bar,
    columns_of,
    fold,
    rate,
    spark,
    top_modules,
    top_ops,
)
from torchgauge.report.content import (
    MemoryPeak,
    at_peak,
    between_calls_s,
    find_memory_peak,
    find_residue,
    moments,
    sweep_points,
)


def test_equal_calls_of_an_op_take_their_time_together() -> None:
    first, second, *_ = top_ops(measured_view(), BY_TIME, 10)
    assert (first.op, first.calls) == ("aten::addmm", BLOCKS + 3)
    assert first.value == pytest.approx((BLOCKS + 3) * OP_S)
    assert first.share == pytest.approx((BLOCKS + 3) * OP_S / MEDIAN_S)
    assert rate(first, first.flops) == pytest.approx((2 * LINEAR_MACS + HIDDEN.numel) / OP_S)
    assert first.roof_share == pytest.approx(0.25)
    assert first.bound == "compute"
    assert (second.op, second.calls) == ("my::mix", BLOCKS)


def test_the_rate_of_an_uncounted_op_is_unknown() -> None:
    mystery = next(entry for entry in top_ops(measured_view(), BY_TIME, 10) if entry.op == "my::mix")
    assert rate(mystery, mystery.flops) is None
    assert rate(mystery, mystery.bytes_moved) == pytest.approx(2 * HIDDEN.nbytes / OP_S)


def test_modules_at_one_place_take_their_own_time_together() -> None:
    first, second, *_ = top_modules(measured_view(), BY_TIME, 10)
    assert (first.paths, first.count) == ("blocks.0–11.fc", BLOCKS)
    assert first.value == pytest.approx(0.024)
    assert first.share == pytest.approx(0.024 / MEDIAN_S)
    assert second.paths == "blocks.0–11"
    assert second.value == pytest.approx(0.012)


def test_without_a_measurement_nothing_is_ranked() -> None:
    assert top_ops(sample_view(), BY_TIME, 10) == []
    assert top_modules(sample_view(), BY_TIME, 10) == []
    assert find_residue(sample_view()) is None
    assert find_memory_peak(sample_view()) is None
    assert at_peak(sample_view()) is None
    assert sweep_points(sample_view()) == {}


def test_a_folded_block_has_the_time_of_all_its_members() -> None:
    folded = {block.row.path: block.row for block in fold(measured_view()).walk()}
    assert folded["blocks.0–11"].time_s == pytest.approx(BLOCKS * 0.003)
    assert folded["blocks.0–11"].self_time_s == pytest.approx(BLOCKS * 0.001)
    assert folded["blocks.0–11.fc"].time_share == pytest.approx(BLOCKS * 0.002 / MEDIAN_S)
    assert folded["unused"].time_s is None


def test_children_and_own_time_add_up_to_the_parent() -> None:
    for block in fold(measured_view()).walk():
        if block.row.time_s is not None:
            below = sum(child.row.time_s or 0.0 for child in block.children)
            assert block.row.time_s == pytest.approx(block.row.self_time_s + below)


def test_the_default_columns_are_those_that_can_be_filled() -> None:
    assert columns_of(sample_view(), DEFAULT_COLUMNS) == DEFAULT_COLUMNS
    assert columns_of(measured_view(), DEFAULT_COLUMNS) == MEASURED_COLUMNS
    assert columns_of(measured_view(), ("params",)) == ("params",)


def test_the_residue_is_what_the_ops_leave_of_the_undisturbed_run() -> None:
    found = find_residue(measured_view())
    assert found is not None
    ops = len(sample_capture().ops)
    assert found.in_ops_s == pytest.approx(ops * OP_S)
    assert found.unexplained_s == pytest.approx(MEDIAN_S - ops * OP_S)
    assert found.unexplained_share == pytest.approx(1 - ops * OP_S / MEDIAN_S)
    assert (found.joined_ops, found.static_ops, found.overhead_share) == (ops, ops, 0.25)


def test_time_between_the_calls_counts_outer_calls_once() -> None:
    record = dataclasses.replace(trace(sample_capture()), kernels=())
    assert between_calls_s(record) == pytest.approx(0.002)  # before the first op and after the last


def test_where_a_device_works_the_wait_after_the_last_call_does_not_count() -> None:
    assert between_calls_s(trace(sample_capture())) == pytest.approx(0.001)


def test_a_run_without_calls_is_all_between_them() -> None:
    assert between_calls_s(TraceRecord(5 * MS, ())) == pytest.approx(0.005)


def test_the_measured_peak_is_next_to_the_prediction_without_the_inputs() -> None:
    capture = measured_capture()
    peak = find_memory_peak(View(capture))
    assert peak == MemoryPeak(55_424, 40_000 - capture.input_bytes)
    assert peak is not None
    assert peak.difference_share == pytest.approx(55_424 / (40_000 - capture.input_bytes) - 1)
    assert MemoryPeak(1, 0).difference_share is None


def test_memory_held_at_the_peak_is_shown_by_category() -> None:
    capture = measured_capture()
    held = at_peak(View(capture))
    assert held is not None
    # 30,000 bytes live at op 0 and its workspace, against 40,000 at op 27.
    parts = held.parts
    assert (held.op.index, parts["activations"], parts["workspace"]) == (27, 40_000 - capture.input_bytes, 0)
    assert parts["parameters"] == capture.modules[0].param_bytes
    assert (parts["buffers"], parts["inputs"]) == (8, capture.input_bytes)


def test_an_op_that_frees_its_input_still_held_it() -> None:
    view = measured_view()
    run = moments(view)
    assert (run[0].op, run[0].workspace_bytes) == (0, WORKSPACE)
    after = view.capture.ops[28].live_bytes - view.capture.input_bytes
    assert after < run[28].activations_bytes == run[27].activations_bytes


def test_sweeps_are_apart_by_what_is_varied_and_keep_their_failures() -> None:
    points = sweep_points(measured_view(sweep=SWEEP))
    assert [point.value for point in points["batch"]] == [1, 2, 4, 8]
    assert [point.median_s for point in points["seq"]] == [0.064, 0.128]
    assert (points["batch"][2].throughput_per_s, points["batch"][2].peak_bytes) == (100.0, 4 * HIDDEN.nbytes)
    assert (points["batch"][3].median_s, points["batch"][3].failure) == (None, "the device ran out of memory")


def test_the_interval_is_a_share_and_a_single_run_has_none() -> None:
    assert interval_share(latency()) == pytest.approx(0.01)
    assert interval_share(latency(runs=1)) is None
    assert interval_share(None) is None


@pytest.mark.parametrize(
    ("value", "drawn"), [(0.0, ""), (10.0, "██████████"), (5.0, "█████"), (1.25, "█▎"), (0.001, "▏"), (20.0, "█" * 10)]
)
def test_a_bar_is_drawn_from_zero(value: float, drawn: str) -> None:
    assert bar(value, 10.0, 10) == drawn


def test_a_line_of_columns_keeps_its_peaks_when_narrowed() -> None:
    assert spark([0, 1, 4, 8], 8, 10) == " ▁▄█"
    assert spark([0, 8, 0, 0], 8, 2) == "█ "
