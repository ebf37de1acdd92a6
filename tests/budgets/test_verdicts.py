"""Verdicts on the sample, whose figures are closed forms."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from torch import nn

import torchgauge as tg
from tests.report.energy_sample import OP_J, measured_energy
from tests.report.measured_sample import MEDIAN_S, measured_view
from tests.report.sample import BLOCKS, CONV_MACS, HOSTILE, LINEAR_MACS, LINEAR_PARAMS, sample_view
from tests.report.stored_sample import stored_view
from torchgauge.errors import UsageError
from torchgauge.facts import View
from torchgauge.report.budgets import (
    KEYS,
    BudgetReport,
    analysis_needs,
    check_view,
    limits,
    parse_limit,
    render_annotations,
    render_json,
    render_junit,
    render_text,
    unchecked,
)

MACS = CONV_MACS + (BLOCKS + 3) * LINEAR_MACS


def report(view: View, **budgets: float | str) -> BudgetReport:
    return check_view(view, limits(budgets))


def test_every_total_can_have_a_limit() -> None:
    assert set(KEYS) == set(sample_view().totals)


def test_a_limit_that_is_just_met_is_within() -> None:
    assert report(sample_view(), macs=MACS).exit_status == 0
    assert report(sample_view(), macs=MACS - 1).exit_status == 3


def test_a_dangerous_pickle_breaks_a_budget_that_is_met_unless_it_is_allowed() -> None:
    wanted = limits({"params": 10**9})
    found = check_view(stored_view(), wanted)
    assert (found.exit_status, found.broken) == (3, ())
    assert render_text([found]).startswith("weights.pt: Dangerous pickle: ")
    assert "::error title=" in render_annotations([found])
    suite = ET.fromstring(render_junit([found]))
    assert (suite.get("tests"), suite.get("failures"), len(suite.findall(".//failure"))) == ("2", "1", 1)
    allowed = check_view(stored_view(), wanted, allow_unsafe_file=True)
    assert allowed.exit_status == 0
    assert "Dangerous pickle" in render_text([allowed])
    assert render_annotations([allowed]) == ""
    assert ET.fromstring(render_junit([allowed])).get("failures") == "0"


def test_the_largest_contributors_are_blamed() -> None:
    (verdict,) = report(sample_view(), macs=1).broken
    assert [(entry.paths, entry.count, entry.value) for entry in verdict.blamed[:2]] == [
        ("blocks.0–11.fc", BLOCKS, BLOCKS * LINEAR_MACS),
        ("stem.0", 1, CONV_MACS),
    ]
    assert verdict.blamed[0].share == pytest.approx(BLOCKS * LINEAR_MACS / MACS)


def test_tied_and_unused_parameters_are_blamed_where_they_are_held() -> None:
    (verdict,) = report(sample_view(), params=1).broken
    assert verdict.blamed[0].value == BLOCKS * LINEAR_PARAMS
    assert sum(entry.value for entry in verdict.blamed) == sample_view().totals.params


def test_of_the_peak_those_are_blamed_that_run_above_the_limit() -> None:
    (verdict,) = report(sample_view(), peak_activation_bytes=29_999).broken
    assert [(entry.paths, entry.value) for entry in verdict.blamed] == [
        ("shared", 40_000),
        ("stem.0", 30_000),
        ("stem.1", 30_000),
    ]


def test_measured_figures_are_blamed_on_the_modules_own_time_and_energy() -> None:
    (slow,) = report(measured_view(), time_s=MEDIAN_S / 2).broken
    assert slow.blamed[0].paths == "blocks.0–11.fc"
    assert slow.blamed[0].value == pytest.approx(0.002 * BLOCKS)
    (hungry,) = report(measured_energy(), energy_j="1J").broken
    assert hungry.blamed[0].value == pytest.approx(OP_J * BLOCKS)


def test_stored_figures_are_blamed_on_the_tensors() -> None:
    found = report(stored_view(), stored_bytes=1, optimizer_elements=1, logical_params=1)
    blamed = {verdict.limit.key: verdict.blamed[0] for verdict in found.broken}
    assert (blamed["stored_bytes"].paths, blamed["stored_bytes"].value) == ("blocks.0–1", 256)
    assert blamed["optimizer_elements"].value == 10
    assert sum(entry.value for entry in found.broken[2].blamed) == stored_view().totals.logical_params


@pytest.mark.parametrize("key", ["time_s", "energy_j", "stored_bytes"])
def test_a_figure_that_is_not_known_never_passes(key: str) -> None:
    found = report(sample_view(), **{key: 1e12})
    assert found.exit_status == 1
    assert found.unknown[0].reason
    assert f"{key} is not known" in render_text([found], 80)


def test_a_broken_limit_counts_before_an_unknown_one() -> None:
    assert report(sample_view(), time_s=1, macs=1).exit_status == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour=3", "no figure 'colour'"),
        ("params", "write it like params=30M"),
        ("time_s=3MB", "is not a time"),
        ("params=-3", "is not a number"),
    ],
)
def test_a_malformed_limit_is_a_usage_error(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_limit(text)


@pytest.mark.parametrize("value", [True, None, [3], float("nan"), -1])
def test_an_invalid_limit_is_a_usage_error(value: object) -> None:
    with pytest.raises(UsageError, match="the limit of 'params'"):
        limits({"params": value})  # type: ignore[dict-item]


def test_limits_say_what_must_be_measured() -> None:
    assert analysis_needs(limits({"params": 1})) == {}
    assert analysis_needs(limits({"time_s": 1})) == {"inference": True}
    assert analysis_needs(limits({"energy_j": 1})) == {"inference": True, "profile": True}
    assert analysis_needs(limits({"fit.h200.used_bytes": "1GB", "fit.1.5GiB.required_bytes": 1})) == {
        "on": ["h200", "1.5GiB"]
    }


def hostile() -> View:
    capture = sample_view().capture
    name = "a.py:\x1b]0;<Net>&%,::error::\n"
    return View(replace(capture, target=replace(capture.target, name=name)))


def test_junit_has_a_case_for_each_limit_and_is_xml_whatever_the_names_hold() -> None:
    found = report(hostile(), params=10**9, macs=1, time_s=1)
    root = ET.fromstring(render_junit([found]))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("3", "1", "1")
    assert [case.get("name") for case in root.iter("testcase")] == ["params ≤ 1.00 G", "macs ≤ 1", "time_s ≤ 1.00 s"]
    (failure,) = root.iter("failure")
    assert "over its limit of 1" in (failure.get("message") or "")
    assert "blocks.0–11.fc (Linear ×12)" in (failure.text or "")


def test_an_annotation_is_one_line_that_names_cannot_break() -> None:
    (line,) = render_annotations([report(hostile(), macs=1)]).splitlines()
    properties, _, message = line.removeprefix("::error ").partition("::")
    assert line.startswith("::error title=")
    assert properties.count("::") == 0
    assert "%25" in message
    assert "\x1b" not in line


def test_an_annotation_names_the_file_of_the_code() -> None:
    capture = sample_view().capture
    view = View(replace(capture, target=replace(capture.target, name="nets/a,b.py:Net")))
    assert render_annotations([report(view, macs=1)]).startswith("::error file=nets/a%2Cb.py,title=nets/a%2Cb.py%3ANet")
    assert render_annotations([report(view, macs=10**12)]) == ""


def test_text_and_json_agree() -> None:
    found = report(sample_view(), params=1000, macs=10**12)
    document = json.loads(render_json([found]))
    assert document["exit_status"] == 3
    assert [row["state"] for row in document["targets"][0]["verdicts"]] == ["broken", "within"]
    text = render_text([found], 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "params" in text
    assert HOSTILE not in text


def test_far_beyond_the_limit_a_factor_is_shown() -> None:
    (verdict,) = report(sample_view(), ops=1).verdicts
    assert verdict.limit.text == "1"
    assert verdict.used_text == f"×{sample_view().totals.ops}"
    (verdict,) = report(sample_view(), ops=sample_view().totals.ops * 2).verdicts
    assert verdict.used_text == "50.0 %"


def test_a_target_that_cannot_be_analysed_has_one_reason_and_no_verdict_within() -> None:
    found = unchecked("a.py:Net", limits({"params": 1, "macs": 2}), "it is\nbroken")
    assert found.exit_status == 1
    assert render_text([found], 80).count("- not checked: it is broken") == 1
    root = ET.fromstring(render_junit([found]))
    assert [error.get("message") for error in root.iter("error")] == [
        "params is not known: it is broken", "macs is not known: it is broken",
    ]  # fmt: skip
    assert json.loads(render_json([found]))["targets"][0]["failure"] == "it is broken"


def test_memory_of_a_training_step_can_be_limited() -> None:
    view = tg.analyze(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)), input_size=(2, 8), mode="train")
    keys = ("saved_activation_bytes", "gradient_bytes", "optimizer_bytes", "total_bytes")
    broken = {verdict.limit.key: verdict for verdict in report(view, **dict.fromkeys(keys, 1)).broken}
    assert {key: broken[key].value for key in keys} == {key: view.totals[key] for key in keys}
    assert [(entry.paths, entry.value) for entry in broken["gradient_bytes"].blamed] == [("0", 576), ("1", 272)]
    assert max(entry.value for entry in broken["total_bytes"].blamed) == view.totals.total_bytes
