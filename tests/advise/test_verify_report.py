from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import torchgauge
from torchgauge.facts import AdviceRow, Row
from torchgauge.report import render
from torchgauge.report.content import error_text, gained_text, measured_text, withdrawn_text
from torchgauge.verify import no_plan

ERROR: Any = {"relative": 2e-6, "cosine": 1.0, "top1": 0.5}


def verified(**figures: Any) -> Any:
    known = {"quantity": "time_s", "gain": 0.2, "ci95": [0.1, 0.3], "output_error": ERROR, "kept": True, "reason": None}
    return known | {"tolerance": 1e-3, "time": None} | figures


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ({}, "saves 20.0 % of the time (95 % interval: 10.0 % to 30.0 %)"),
        ({"gain": -0.2, "ci95": [-0.3, -0.1]}, "takes 20.0 % more time (95 % interval: 10.0 % to 30.0 %)"),
        ({"quantity": "param_bytes", "gain": 0.5, "ci95": [0.5, 0.5]}, "saves 50.0 % of the bytes it holds"),
        ({"quantity": "stored_bytes", "gain": -0.5, "ci95": [-0.5, -0.5]}, "takes 50.0 % more bytes to store"),
        ({"ci95": None, "samples": 4}, "saves 20.0 % of the time of a sample"),
        ({"ci95": None}, "saves 20.0 % of the time"),
        ({"gain": None, "ci95": None}, "no result"),
    ],
)
def test_a_gain_is_told_with_its_interval(figures: dict[str, Any], text: str) -> None:
    assert gained_text(verified(**figures)) == text


def test_the_output_error_is_told_in_words() -> None:
    assert error_text(ERROR) == "outputs differ by 2e-06 of their norm, the same top-1 in 50.0 % of the rows"
    assert error_text({"relative": 0.0, "cosine": 1.0, "top1": None}) == "outputs the same"
    assert error_text({"relative": None, "cosine": None, "top1": None}) == "outputs not compared"


def test_what_saves_memory_has_its_price_in_time() -> None:
    time = {"gain": -0.3, "ci95": [-0.4, -0.2], "pairs": 10}
    row: Any = {"verified": verified(quantity="peak_activation_bytes", gain=0.6, ci95=[0.6, 0.6], time=time)}

    assert str(measured_text(row)).startswith(
        "measured: saves 60.0 % of the peak memory of a run; takes 30.0 % more time (95 % interval: 20.0 % to 40.0 %)"
    )
    row["verified"]["time"] = time | {"gain": 0.01, "ci95": [-0.02, 0.03]}
    assert "; no difference in time above the noise (95 % interval: -2.0 % to 3.0 %)" in str(measured_text(row))


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        (
            {"reason": "it is slower", "gain": -0.2, "ci95": [-0.3, -0.1]},
            "it is slower (95 % interval: 10.0 % to 30.0 %)",
        ),
        ({"reason": "nothing", "gain": 0.0, "ci95": [-0.3, 0.1]}, "nothing (95 % interval: -30.0 % to 10.0 %)"),
        ({"reason": "it fails", "gain": None, "ci95": None}, "it fails"),
        (
            {"reason": "it is wrong", "tolerance": 1e-6, "ci95": [0.2, 0.2], "note": "applied at 1 of 3 places"},
            "it is wrong; saves 20.0 % of the time",
        ),
    ],
)
def test_what_is_withdrawn_has_its_reason_and_the_figures_that_it_does_not_tell(
    figures: dict[str, Any], text: str
) -> None:
    row: Any = {"rule": "mine", "where": {"module": "a", "weight": None}, "verified": verified(kept=False, **figures)}
    place = f"a, {figures['note']}" if "note" in figures else "a"

    assert withdrawn_text(row) == f"mine ({place}): {text}"


def test_what_was_not_tried_says_why() -> None:
    row: Any = {"verified": None, "unverified": "not now"}
    assert measured_text(row) == "not measured: not now"
    row = {"verified": None}
    assert measured_text(row) is None


def advised(**figures: Any) -> torchgauge.Analysis:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    found = torchgauge.analyze(model, input_size=(1, 3, 8, 8), progress=False, silence=["conv-bn-activation"])
    found.advice = [AdviceRow.of(row | {"verified": verified(**figures)}) for row in found.advice]
    found.plan = Row(
        rules=["conv-bn-fusion"],
        gain=0.2,
        ci95=[0.1, 0.3],
        output_error=ERROR,
        code="def optimise(model):\n    return '\x1b[31m'\n",
        tried=[],
    )
    return found


def test_the_report_shows_what_was_measured_and_the_plan() -> None:
    text = str(advised())
    words = " ".join(text.split())

    assert "measured: saves 20.0 % of the time" in words
    assert "Withdrawn" not in text
    assert "\nPlan\nconv-bn-fusion, measured: saves 20.0 % of the time" in text
    assert "\ndef optimise(model):\n    return" in text
    assert "\x1b" not in text


def test_what_did_not_hold_is_listed_as_withdrawn_and_not_as_advice() -> None:
    text = str(advised(kept=False, reason="it takes 20.0 % more time", gain=-0.2, ci95=[-0.3, -0.1]))
    words = " ".join(text.split("\nAdvice\n")[1].split("\nPlan\n")[0].split())

    assert "Withdrawn: refuted when tried - conv-bn-fusion (1): it takes 20.0 % more time" in words
    assert "fold the batch norm" not in words


def test_markdown_tells_what_was_measured_withdrawn_and_planned() -> None:
    kept, gone = (render(advised(**figures), "markdown") for figures in ({}, {"kept": False, "reason": "it is slower"}))

    assert "- measured: saves 20.0 % of the time" in kept
    assert "Withdrawn" not in kept
    assert "## Plan" in kept
    assert "```python\ndef optimise(model):" in kept
    assert "Withdrawn: refuted when tried\n\n- conv-bn-fusion (1): it is slower" in gone
    assert "fold the batch norm" not in gone


def test_what_was_measured_instead_of_the_code_shown_is_said() -> None:
    row: Any = {"verified": verified(note="with a layer of torch's own")}
    text = measured_text(row)

    assert text is not None
    assert text.startswith("measured (with a layer of torch's own): saves 20.0 % of the time")


def test_a_plan_that_did_not_hold_says_why() -> None:
    found = advised()
    found.plan = Row(no_plan("no time gain above the noise"))

    assert "\nPlan\nnone: no time gain above the noise\n" in str(found)
    assert "## Plan\n\nnone: no time gain above the noise\n" in render(found, "markdown")
    assert render(found, "html")
