"""The data of the charts and text sections, without a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.page.chart_samples import ADVICE, PLAN, ROOF, SAMPLES, all_measured, part_of, refuted, roofed
from tests.report.energy_sample import OP_J, estimated_energy, measured_energy, swept
from tests.report.measured_sample import COUNTERS, MEDIAN_S, OP_S, SWEEP, SYSTEM, measured_capture
from tests.report.sample import BLOCKS, CONV_MACS, LINEAR_MACS, sample_capture, sample_view
from tests.report.weights_sample import APART, weights_view
from tests.report.weights_sample import BLOCKS as WEIGHT_BLOCKS
from torchgauge.facts import PickleImport, View
from torchgauge.hardware import Roof
from torchgauge.units import format_seconds

OURS = (
    "advice", "distribution", "energy", "environment", "memory", "method", "roofline", "sweeps", "time", "weights",
)  # fmt: skip


@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize("name", OURS)
def test_every_part_is_plain_json(name: str, make: Any) -> None:
    json.dumps(part_of(make(), name), allow_nan=False)


def test_kinds_of_ops_add_up_to_the_whole_model() -> None:
    view = sample_view()
    found = part_of(view, "distribution")
    for key in ("macs", "flops"):
        assert sum(row[key] for row in found["categories"]) == view.totals[key]
        assert sum(row[key] for row in found["layers"]) == view.totals[key]
    by_name = {row["name"]: row for row in found["categories"]}
    assert by_name["convolution"]["macs"] == CONV_MACS
    assert by_name["matmul"]["macs"] == (BLOCKS + 3) * LINEAR_MACS
    assert by_name["other"]["uncounted"] == BLOCKS


def test_time_and_energy_by_kind_are_sums_of_the_ops() -> None:
    timed = part_of(all_measured(), "distribution")["categories"]
    assert {row["name"]: row["time_s"] for row in timed}["matmul"] == pytest.approx((BLOCKS + 3) * OP_S)
    fed = part_of(measured_energy(), "distribution")
    assert {row["name"]: row["energy"] for row in fed["categories"]}["matmul"] == pytest.approx((BLOCKS + 3) * OP_J)
    assert sum(row["energy"] for row in fed["layers"]) == pytest.approx(OP_J * len(sample_capture().ops))
    assert not fed["energy_is_estimated"]
    assert part_of(estimated_energy(), "distribution")["energy_is_estimated"]


def test_the_limits_of_the_device_are_recovered_from_the_shares_of_the_roof() -> None:
    """Relu and the op without a formula are bound by memory, the linears by arithmetic."""
    found = part_of(roofed(), "roofline")
    assert found["peaks"]["bytes_per_s"] == pytest.approx(1e10)
    assert found["peaks"]["flops_per_s"]["float32"] == pytest.approx(2e10)
    assert found["ridges"] == [
        {"dtype": "float32", "flops_per_s": pytest.approx(2e10), "intensity": pytest.approx(2.0)}
    ]


def test_a_limit_that_no_op_comes_to_stays_unknown() -> None:
    """With this much arithmetic every op is bound by memory."""
    peaks = part_of(roofed(Roof(1e30, 1e10)), "roofline")["peaks"]
    assert peaks["bytes_per_s"] == pytest.approx(1e10)
    assert peaks["flops_per_s"] == {}


def test_an_unknown_device_has_no_peaks() -> None:
    found = part_of(sample_view(), "roofline")
    assert found["peaks"] is None
    assert found["ridges"] == found["points"] == []


def test_dots_lie_at_their_intensity_and_rate() -> None:
    points = {point["op"]: point for point in part_of(roofed(), "roofline")["points"]}
    conv = sample_capture().ops[0]
    moved = conv.cost.bytes_read + conv.cost.bytes_written
    assert points["aten::convolution"]["intensity"] == pytest.approx(conv.cost.flops / moved)
    assert points["aten::convolution"]["flops_per_s"] == pytest.approx(ROOF.attainable(conv.cost.flops / moved) / 2)
    assert points["aten::addmm"]["calls"] == BLOCKS + 3
    assert "my::mix" not in points


def test_the_histogram_of_intensity_holds_every_counted_op_once() -> None:
    view = sample_view()
    bins = part_of(view, "roofline")["histogram"]
    assert sum(row["flops"] for row in bins) == view.totals.flops
    assert all(row["high"] == 2 * row["low"] for row in bins)
    relu = view.ops[1]
    assert any(row["low"] <= relu.arithmetic_intensity < row["high"] for row in bins)


def test_memory_shows_the_peak_and_what_was_measured() -> None:
    found = part_of(all_measured(), "memory")
    assert (found["peak_bytes"], found["peak_op"]["module"]) == (40_000, "shared")
    assert found["at_peak"] is None
    measured = found["measured"]
    assert len(measured["ops"]) == len(sample_capture().ops)
    assert measured["peak_bytes"] == 55_424
    assert measured["workspace"][0] == 4096


def test_time_has_what_the_parts_leave_of_the_whole() -> None:
    found = part_of(all_measured(), "time")
    explained = OP_S * len(sample_capture().ops)
    facts = {name: value for name, value, _ in found["residue"]["blocks"][0]["rows"]}
    assert facts["Unattributed"] == format_seconds(MEDIAN_S - explained)
    assert found["latency"]["precision"] == pytest.approx(0.01)
    assert found["modules"][0]["paths"] == f"blocks.0–{BLOCKS - 1}.fc"
    assert found["modules"][0]["self_time_s"] == pytest.approx(BLOCKS * 0.002)
    remarks = [block["text"] for block in found["machine"][0]["blocks"] if block["kind"] == "text"]
    assert any("the system shows no sensor" in text for text in remarks)


def test_a_quantity_of_cores_shows_their_mean_and_others_each_label() -> None:
    quantities = {
        "cpu_share": {
            "unit": "share", "min": 0.0, "mean": 0.5, "max": 1.0, "t_s": [1.0, 2.0],
            "values": [[0.0, 1.0], [0.5, 0.7]], "by_label": {"cpu0": {}, "cpu1": {}},
        },
        "page_faults_per_s": {
            "unit": "1/s", "t_s": [1.0, 2.0], "values": [[3.0, 0.0], [5.0, 1.0]],
            "by_label": {"minor": {"min": 3.0, "mean": 4.0, "max": 5.0}, "major": {"min": 0.0, "mean": 0.5, "max": 1}},
        },
    }  # fmt: skip
    view = View(measured_capture(system={"duration_s": 2.0, "period_s": 1.0, "quantities": quantities, "absent": {}}))
    shares, faults = part_of(view, "time")["quantities"]
    assert shares["lines"] == [{"label": "", "values": [0.5, 0.6]}]
    assert faults["lines"] == [{"label": "minor", "values": [3.0, 5.0]}, {"label": "major", "values": [0.0, 1.0]}]


def test_energy_keeps_estimates_apart() -> None:
    measured, estimated = part_of(measured_energy(), "energy"), part_of(estimated_energy(), "energy")
    assert not measured["is_estimated"]
    assert estimated["is_estimated"]
    assert estimated["range"]["low"] < estimated["range"]["high"]
    (value,) = (value for name, value, _ in estimated["summary"]["blocks"][0]["rows"] if name == "Energy")
    assert value.startswith("≈")


def test_points_of_a_sweep_are_with_the_energy_they_take() -> None:
    rows = [{**row, "time_per_sample_s": 0.1, "energy_per_sample_j": 2.0, "efficient": True} for row in SWEEP[:2]]
    capture = swept([*rows, SWEEP[3]]).capture
    view = View(replace(capture, energy=measured_energy().capture.energy))
    assert [point["name"] for point in part_of(view, "energy")["pareto"]] == ["batch 1", "batch 2"]
    assert part_of(view, "sweeps")["sweeps"][0]["points"][-1]["failure"] == "the device ran out of memory"


def test_the_method_names_what_is_uncounted_assumed_unused_and_absent() -> None:
    found = part_of(sample_view(), "method")
    (table,) = (block for block in found["coverage"]["blocks"] if block["kind"] == "table")
    assert table["rows"][0][:2] == ["my::mix", str(BLOCKS)]
    assert found["inputs"][0]["inferred"] == "the first convolution takes 3 channels"
    assert found["unused"]["modules"][0]["path"] == "unused"
    assert found["warnings"] == ["autocast was on"]
    assert "a branch on the values of x" in found["how"]
    assert found["absent"][0]["name"] == "measured time and memory"
    assert any("RAPL" in row["reason"] for row in part_of(estimated_energy(), "method")["absent"])


def test_a_shared_reason_is_shown_once_and_settings_have_units() -> None:
    settings = {"budget_s": 10.0, "profile_level": "ops"}
    found = part_of(View(measured_capture(system=SYSTEM, counters=COUNTERS, settings=settings)), "method")
    assert {"name": "temperature, cuda", "reason": "the system shows no sensor"} in found["absent"]
    assert found["settings"] == [{"name": "budget", "value": "10.0 s"}, {"name": "profile level", "value": "ops"}]


def test_imports_of_a_pickle_are_listed_dangerous_ones_first() -> None:
    imports = (PickleImport("torch.FloatStorage", "expected", False), PickleImport("os.system", "dangerous", True))
    capture = weights_view().capture
    assert capture.stored is not None
    view = View(replace(capture, stored=replace(capture.stored, imports=imports)))
    found = part_of(view, "method")
    assert [row["name"] for row in found["pickle"]["imports"]] == ["os.system", "torch.FloatStorage"]
    assert "time" in found["absent"][0]["name"]


def test_the_map_of_weights_has_a_row_for_each_place_and_a_column_for_each_block() -> None:
    found = part_of(weights_view(), "weights")
    grid = found["map"][0]
    assert grid["stem"] == "blocks.*"
    assert grid["columns"] == [str(block) for block in range(WEIGHT_BLOCKS)]
    assert [row["label"] for row in grid["rows"]] == ["attn.qkv", "mlp.up", "norm"]
    names = [row["name"] for row in weights_view().weights]
    cell = grid["rows"][1]["cells"][APART]
    assert [names[place] for place in cell] == [f"blocks.{APART}.mlp.up.weight"]


def test_tensors_keep_their_figures_in_columns() -> None:
    tensors = part_of(weights_view(), "weights")["tensors"]
    assert tensors["length"] == 3 * WEIGHT_BLOCKS + 1
    std = tensors["columns"]["std"]
    values = [std["table"][place] for place in std["index"]]
    assert (values.count(0.4), values.count(None)) == (1, 1)
    assert "spectral_norm" not in tensors["columns"]


def test_of_very_many_tensors_the_largest_have_their_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.report.page.weights._MAX_DISTRIBUTIONS", 2)
    columns = part_of(weights_view(), "weights")["tensors"]["columns"]
    sizes = [columns["bytes"]["table"][place] for place in columns["bytes"]["index"]]
    shown = [place for place, value in enumerate(drawn(columns["histogram"], len(sizes))) if value is not None]
    assert 0 < len(shown) <= 2
    assert {sizes[place] for place in shown} == {max(sizes)}


def drawn(column: Any, length: int) -> list[Any]:
    if isinstance(column, list):
        return column
    return [column["same"]] * length if "same" in column else [column["table"][place] for place in column["index"]]


def test_tensors_that_were_not_read_give_the_reason() -> None:
    capture = weights_view().capture
    why = "no values are stored: it is on the meta device"
    assert capture.statistics is not None
    figures: Any = {name: {"skipped": why} for name in capture.statistics.tensors}
    found = part_of(View(replace(capture, statistics=replace(capture.statistics, tensors=figures))), "weights")
    assert found["skipped"] == [{"reason": why, "count": len(figures)}]


def test_a_file_without_code_resembles_kinds_of_layers_and_has_no_runs() -> None:
    view = weights_view()
    assert "categories" not in (part_of(view, "distribution") or {})
    assert all(part_of(view, name) is None for name in ("memory", "roofline", "time", "energy", "sweeps"))


def test_advice_shows_what_was_verified_withdrawn_and_planned() -> None:
    found = part_of(refuted(), "advice")
    plain_row, kept, withdrawn = found["rows"]
    assert (plain_row["measured"], plain_row["is_withdrawn"]) == (None, False)
    assert kept["is_verified"]
    assert "saves 25.0 %" in kept["measured"]
    assert withdrawn["is_withdrawn"]
    assert withdrawn["withdrawn_for"] == "it is slower"
    assert found["plan"]["code"] == PLAN["code"]
    assert plain_row["places"] == ["stem.0", "stem.1"]
    assert plain_row["place_count"] == 3


def test_a_plan_that_holds_nothing_is_not_shown() -> None:
    advice: Any = ({**ADVICE},)
    plan: Any = {**PLAN, "rules": []}
    view = View(replace(sample_capture(), advice=advice, plan=plan))
    assert part_of(view, "advice")["plan"] is None
