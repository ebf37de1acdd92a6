"""Energy, carbon and the efficient points in the text report and in the document."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.report.energy_sample import OP_J, estimated_energy, measured_energy, swept
from tests.report.measured_sample import latency
from tests.report.sample import BLOCKS, sample_view
from torchgauge.facts import View, capture_from_document
from torchgauge.report import BY_ENERGY, Options, line_width, render, top_modules, top_ops
from torchgauge.report.content import sections_of
from torchgauge.report.formats import report_lines, write_sections

GOLDEN = Path(__file__).parent / "golden"


def point(value: int, time: float, energy: float | None, efficient: bool | None) -> dict[str, Any]:
    row = {"key": "batch", "value": value, "latency": latency(time), "memory": None, "failure": None}
    row |= {"time_per_sample_s": time, "energy_per_sample_j": energy, "efficient": efficient}
    return row | {"power_limit_watts": 700.0}


POINTS = [point(1, 0.004, 2.0, False), point(4, 0.002, 0.5, True), point(8, 0.0025, 0.25, True)]


def pareto(rows: list[dict[str, Any]]) -> str:
    """The section on time against energy, as text."""
    found = sections_of(swept(rows), Options(width=80))
    return write_sections([one for one in found if one.title.startswith("Time against energy")], 80)


@pytest.mark.parametrize(("name", "view"), [("energy", measured_energy), ("energy_estimated", estimated_energy)])
def test_the_text_equals_the_golden_file(name: str, view: Any, request: pytest.FixtureRequest) -> None:
    text = render(view(), "text", Options(width=80))
    golden = GOLDEN / f"{name}.txt"
    if request.config.getoption("--regenerate"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [72, 80, 200])
@pytest.mark.parametrize("view", [measured_energy, estimated_energy, lambda: swept(POINTS)])
def test_no_line_is_wider_than_asked(view: Any, width: int) -> None:
    assert max(line_width(line) for line in report_lines(view(), Options(width=width))) <= width


def test_without_energy_the_report_says_nothing_of_it() -> None:
    text = render(sample_view())
    assert "Energy" not in text
    assert "Carbon" not in text


def test_measured_figures_carry_no_mark_of_an_estimate() -> None:
    text = render(measured_energy())
    assert "≈" not in text
    assert "stimated" not in text
    assert "ESTIMATED" not in text


def test_an_estimate_is_one_line_of_a_brief_report() -> None:
    text = render(estimated_energy(), "text", Options(width=200))
    assert [line for line in text.splitlines() if re.search("nergy|CO2|arbon|≈", line)] == [
        "Energy, ESTIMATED  ≈ 1.60 J  "
        "between 400 mJ and 6.40 J, ≈ 160 mg of CO2e per 1,000 samples: no meter measured it"
    ]


def test_every_estimated_figure_is_marked_and_has_its_range() -> None:
    text = render(estimated_energy(), "text", Options(ops=True))
    assert "Energy of one run, ESTIMATED: no meter measured it" in text
    # 4 cores at 1 to 16 W for 0.1 s; the middle is the geometric mean.
    assert "≈ 1.60 J" in text
    assert "between 400 mJ and 6.40 J" in text
    assert "Carbon dioxide equivalents, ESTIMATED" in text
    assert "Power       ≈ 16.0 W        between 4.00 W and 64.0 W" in text
    assert "Efficiency  ≈ 1.48 MFLOP/J  between 371 k and 5.94 MFLOP/J" in text
    assert text.count("FLOP/J") == 2, "of parts it would only repeat what was assumed"


@pytest.mark.parametrize("ranked", ["modules", "ops"])
def test_every_row_of_an_estimated_ranking_is_marked(ranked: str) -> None:
    found = sections_of(estimated_energy(), Options(width=100, ops=True))
    text = write_sections([one for one in found if one.title.startswith(f"Most energy-hungry {ranked}")], 100)
    rows = [line for line in text.splitlines() if "%" in line]
    assert rows
    assert all("≈" in row for row in rows)


def test_the_reason_for_no_measurement_is_shown_and_escaped() -> None:
    text = render(estimated_energy(), "text", Options(ops=True))
    assert r"Not measured: no energy meter: RAPL: \x1b[31mnot there" in text
    assert "\x1b" not in text


def test_the_efficiency_is_held_against_the_devices_best() -> None:
    # 10 TFLOP/s over 500 W are 20 GFLOP/J.
    text = render(measured_energy())
    assert "2.00 GFLOP/J" in text
    assert "10.0 % of the device's best in float32: published peak over the limit of 500 W" in " ".join(text.split())


def test_power_over_time_is_drawn_from_zero() -> None:
    assert "▂█▄ up to 400 W" in render(measured_energy())


def test_heat_and_throttling_are_shown() -> None:
    text = render(measured_energy())
    assert "Temperature  30 °C to 60 °C, 30 °C to 60 °C over all\n" in text
    assert "Temperature  ▄█ 60 °C at most" in text
    assert "Throttled    power cap 25.0 % of the time" in text
    assert "Drift        +2.0 %  of energy, from the first trial to the last; 10.0 mJ per °C" in text


def test_the_module_table_shows_energy_on_request() -> None:
    assert "≈" in render(estimated_energy(), "text", Options(columns=("estimated_energy_j",))).split("Module ")[1][:200]
    table = render(measured_energy(), "text", Options(columns=("energy_j",))).split("Module ")[1]
    assert "15.0 J" in table[:200]
    # Twelve blocks of two ops each, shown once.
    assert "0–11 ×12 Block                    12.0 J" in table


def test_carbon_is_a_closed_form_of_its_terms() -> None:
    view = measured_energy()
    joules = view.energy["joules"] if view.energy else 0.0
    carbon = view.energy["carbon"] if view.energy else {}
    assert carbon["grams_per_1000"] == pytest.approx(1000 * joules / 3.6e6 * 360 * 1.5)


def test_the_ranking_has_a_modules_own_energy() -> None:
    ranked = {entry.paths: entry for entry in top_modules(measured_energy(), BY_ENERGY, 100)}
    view = measured_energy()
    own = sum(entry.value for entry in ranked.values())
    assert own == pytest.approx(OP_J * len(view.capture.ops))
    assert ranked[f"blocks.0–{BLOCKS - 1}.fc"].value == pytest.approx(OP_J * BLOCKS)


def test_ops_are_ranked_by_the_energy_of_all_equal_calls() -> None:
    ranked = top_ops(measured_energy(), BY_ENERGY, 100)
    assert [entry.value for entry in ranked] == sorted((entry.value for entry in ranked), reverse=True)
    assert all(entry.value == pytest.approx(OP_J * entry.calls) for entry in ranked)


@pytest.mark.parametrize("view", [measured_energy, estimated_energy])
def test_energy_survives_being_saved(view: Any) -> None:
    before = view()
    document = json.loads(render(before, "json"))
    after = View(capture_from_document(document, "saved"))
    assert render(after) == render(before)
    assert json.loads(render(after, "json")) == document


def test_an_estimate_is_never_under_a_measured_key() -> None:
    document = json.loads(render(estimated_energy(), "json"))
    assert document["totals"]["energy_j"] is None
    assert document["energy"]["joules"] is None
    for row in (*document["modules"], *document["ops"]):
        assert row["energy_j"] is None
        if row["estimated_energy_j"] is not None:
            assert row["estimated_energy_low_j"] < row["estimated_energy_j"] < row["estimated_energy_high_j"]


def test_efficient_points_are_marked_in_the_table_and_the_plot() -> None:
    text = pareto(POINTS)
    assert "batch 1  4.00 ms  2.00 J      700 W\n" in text
    assert "batch 4  2.00 ms  500 mJ      700 W  ●\n" in text
    assert text.count("●") == 2 + 1 + 2


def test_the_plot_puts_the_slowest_to_the_right_and_the_hungriest_on_top() -> None:
    lines = pareto(POINTS).split("more efficient.\n")[1].splitlines()
    assert lines[0].startswith("2.00 J │")
    assert lines[0].endswith("·")
    assert lines[-1].endswith("4.00 ms")


def test_an_estimate_has_no_front() -> None:
    guess = {"value": 0.2, "low": 0.1, "high": 0.4}
    rows = [point(1, 0.004, None, None) | {"estimated_energy_per_sample_j": guess}]
    text = pareto(rows)
    assert "energy ESTIMATED" in text
    assert "≈ 200 mJ (100 mJ to 400 mJ)" in text
    assert "no Pareto front" in text.replace("\n", " ")
    assert "●" not in text


def test_a_sweep_without_energy_has_no_such_section() -> None:
    assert pareto([point(1, 0.004, None, None)]) == "\n"
