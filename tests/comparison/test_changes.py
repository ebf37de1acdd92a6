"""Conclusions that two readings allow, and those that they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

import torchgauge as tg
from tests.report.energy_sample import estimated_energy, measured_energy
from tests.report.measured_sample import latency, measured_view
from tests.report.sample import sample_view
from tests.report.stored_sample import MATRIX, PACKED_VALUES, stored_view
from torchgauge.facts import View
from torchgauge.report.comparison import Change, Compared, Figure, Reading, change, compare_views


def timed(median: float, **changes: Any) -> View:
    return measured_view(latency=latency(median) | changes)


def figure(compared: Compared, key: str) -> Figure:
    return next(figure for figure in compared.figures if figure.quantity.key == key)


def change_of(base: View, other: View, key: str) -> Change:
    found = figure(compare_views([base, other]), key).changes[1]
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("base", "other", "verdict", "text"),
    [
        (100, 100, "same", "="),
        (100, 125, "more", "+25.0 %"),
        (100, 50, "less", "−50.0 %"),
        (100, 1400, "more", "×14"),
        (100_000, 100_001, "more", "< 0.1 %"),
        (0, 5, "more", "new"),
        (None, 5, "unknown", "-"),
    ],
)
def test_counts_are_compared_as_they_are(base: float | None, other: float, verdict: str, text: str) -> None:
    found = change(Reading(base), Reading(other))
    assert (found.verdict, found.text) == (verdict, text)


def test_times_with_overlapping_intervals_do_not_differ() -> None:
    # The sample's interval is ±1 %.
    assert change_of(timed(0.080), timed(0.081), "time_s").verdict == "indistinct"
    assert change_of(timed(0.080), timed(0.081), "time_s").text == "no difference"
    assert change_of(timed(0.080), timed(0.090), "time_s").verdict == "more"
    assert change_of(timed(0.080), timed(0.060), "throughput_per_s").verdict == "more"


def test_a_single_run_shows_no_difference() -> None:
    found = change_of(timed(0.080), timed(0.160, runs=1), "time_s")
    assert (found.verdict, found.text) == ("uncertain", "?")


def test_a_measured_and_an_estimated_energy_are_not_compared() -> None:
    compared = compare_views([measured_energy(), estimated_energy()])
    found = figure(compared, "energy_j")
    assert found.changes[1] == Change("incomparable")
    assert found.quantity.text(found.readings[1]).startswith("≈ ")
    assert not found.quantity.text(found.readings[0]).startswith("≈ ")


def test_two_estimates_are_compared_by_their_ranges() -> None:
    assert change_of(estimated_energy(), estimated_energy(), "energy_j").verdict == "indistinct"


def test_a_figure_that_a_side_lacks_is_unknown_not_zero() -> None:
    assert change_of(timed(0.080), sample_view(), "time_s") == Change("unknown")


def test_circumstances_that_differ_are_named() -> None:
    base = sample_view()
    other = View(replace(base.capture, environment=replace(base.capture.environment, torch="9.9.9")))
    assert compare_views([base, other]).differing == ["torch"]


def test_one_analysis_is_not_a_comparison() -> None:
    from torchgauge.errors import UsageError

    with pytest.raises(UsageError, match="two"):
        compare_views([sample_view()])


def test_packed_weights_count_their_unpacked_parameters() -> None:
    """In the sample one tensor is packed: its values are parameters of the model, not of the file."""
    packed = stored_view()
    stored = packed.capture.stored
    assert stored is not None
    plain = View(replace(packed.capture, stored=replace(stored, tensors=stored.tensors[:3])))
    found = figure(compare_views([plain, packed]), "logical_params")
    values = [reading.value for reading in found.readings]
    assert values == [2 * MATRIX.numel, 2 * MATRIX.numel + PACKED_VALUES]
    assert "logical_params" not in {one.quantity.key for one in compare_views([plain, sample_view()]).figures}


def test_memory_of_training_is_compared_where_there_is_any() -> None:
    small, large = (tg.analyze(nn.Linear(8, width), input_size=(2, 8), mode="train") for width in (4, 8))
    assert change_of(small, large, "optimizer_bytes").text == "+97.3 %"  # 2 · 36 and 2 · 72 elements, and two counters
    assert change_of(small, large, "saved_activation_bytes").verdict == "same"
    still = tg.analyze(nn.Linear(8, 4), input_size=(2, 8))
    keys = {entry.quantity.key for entry in compare_views([still, still]).figures}
    assert "total_bytes" in keys
    assert not keys & {"gradient_bytes", "optimizer_bytes", "saved_activation_bytes"}
