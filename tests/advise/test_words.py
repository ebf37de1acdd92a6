"""Every text of advice is a phrase that others can be put beside, and its numbers look as all numbers do."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, cast

import pytest
from torch import nn

from tests.advise.planted import Planted, seen
from tests.advise.test_families import ZOO
from torchgauge.advise import Advice, Patch
from torchgauge.advise.record import Gain as Saved
from torchgauge.advise.rules import transfers
from torchgauge.facts import Capture, View
from torchgauge.report import Options
from torchgauge.report.content import figure_text, gain_text
from torchgauge.report.content.advice import sections
from torchgauge.report.formats import write_sections

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Gain

# Percent and units stand apart from their number, a factor's sign does not.
_CROWDED = re.compile(r"\d(%|[kMGT]?i?B\b|[mµn]?s\b|dB|x\b| ×(?! ))")
RANGE = re.compile(r"\d to \d+(\.\d)? %")
_APART = ("places", "count", "file")


@pytest.mark.parametrize("case", ZOO, ids=lambda case: f"{case.rule} {case.name}")
def test_texts_are_phrases_without_a_full_stop_and_take_three_lines(case: Planted) -> None:
    for advice in case.in_fault():
        gain = advice.expected_gain  # a bug may have none
        for text in (advice.recommendation, *([] if gain is None else [gain.how]), advice.risk):
            assert text[0].islower() or text.split()[0].isupper() or text[0].isdigit(), text
            assert not text.endswith("."), text
            assert ". " not in text, text
            assert text == " ".join(text.split()), text
        before = lines_before_code(advice)
        assert len(before) <= 3, before
        assert not any("…" in line or len(line) > 80 for line in before), before
        assert f"{advice.rule} at " in before[-1]
        assert gain is None or gain.low in (0, gain.high) or RANGE.search("".join(before)), before
        assert "model.py:1234" in before[-1]
        assert len(f"1. risk: {advice.risk}") <= 80, advice.risk


@pytest.mark.parametrize("case", ZOO, ids=lambda case: f"{case.rule} {case.name}")
def test_numbers_in_texts_are_written_as_those_of_reports(case: Planted) -> None:
    for advice in case.in_fault():
        figures = [figure_text(name, value) for name, value in advice.evidence.items() if name not in _APART]
        gain = advice.expected_gain
        gain_texts = [] if gain is None else [gain.how, gain_text(cast("Gain", gain.member()))]
        for text in (advice.recommendation, advice.risk, *gain_texts, *filter(None, figures)):
            assert not _CROWDED.search(text), text


@pytest.mark.parametrize("case", ZOO[:3], ids=lambda case: f"{case.rule} {case.name}")
def test_the_line_of_code_is_shown_however_long_the_path_of_the_module_is(case: Planted) -> None:
    advice = next(iter(case.in_fault()))
    deep = "encoder.encode_blocks.0.encode_layers.0.dim_sender.query_projection"

    place = lines_before_code(replace(advice, where=replace(advice.where, module="a")), deep)[-1]

    assert "model.py:1234" in place
    # The last parts are whole, so that they can be looked up.
    assert re.search(r"at …(0\.)?(encode_layers\.0\.)?dim_sender\.query_projection, ", place), place


def lines_before_code(advice: Advice, module: str = "encoder.layers.11") -> list[str]:
    """As a terminal of 80 columns shows it, at a place with a path, a file and a line."""
    path = module if advice.where.module else advice.where.module
    place = replace(advice.where, module=path, weight=None, source="model.py:1234")
    row = replace(advice, where=place, change=Patch("code = 'to paste'")).member()
    capture = replace(small_capture(), advice=(row,), options=(), plan=None)
    lines = write_sections(sections(View(capture), Options()), 80).splitlines()
    return lines[lines.index("Advice") + 1 : next(at for at, line in enumerate(lines) if "to paste" in line)]


@cache
def small_capture() -> Capture:
    return seen(nn.Linear(2, 2), 1, 2).capture


@pytest.mark.parametrize("text", ["30% of", "1.2GB", "10ms", "4x as fast", "43dB"])
def test_such_numbers_would_be_seen(text: str) -> None:
    assert _CROWDED.search(text)


@pytest.mark.parametrize("remedy", [each for each in vars(transfers).values() if isinstance(each, transfers.Remedy)])
def test_what_a_gpu_waits_for_fits_two_lines_behind_the_gain(remedy: transfers.Remedy) -> None:
    """`about 14 % faster on a GPU (930 µs of 6.57 ms; 7 to 21 %): ` takes 60 columns of the first."""
    assert len(remedy.words.replace("{}", "masked_select")) <= 92
    assert len(f"1. risk: {remedy.risk}") <= 80


@pytest.mark.parametrize(
    ("low", "text"),
    [(0.0, "up to 60 % faster (6.00 ms of 10.0 ms)"), (0.2, "about 40 % faster (4.00 ms of 10.0 ms; 20 to 60 %)")],
)
def test_the_amount_of_a_gain_is_that_of_its_share(low: float, text: str) -> None:
    gain = Saved("time_s", low, 0.6, "", amount=(low + 0.6) / 2 * 10e-3).member()

    assert gain_text(cast("Gain", gain)) == text
