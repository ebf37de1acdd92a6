"""Every text of advice is a phrase that others can be put beside, and its numbers look as all numbers do."""

from __future__ import annotations

import re

import pytest

from tests.advise.planted import Planted, gain_of
from tests.advise.test_families import ZOO
from torchgauge.report.content import figure_text, gain_text

# Percent and units stand apart from their number, a factor's sign does not.
_CROWDED = re.compile(r"\d(%|[kMGT]?i?B\b|[mµn]?s\b|dB|x\b| ×(?! ))")
_APART = ("places", "count", "file")


@pytest.mark.parametrize("case", ZOO, ids=lambda case: f"{case.rule} {case.name}")
def test_texts_are_phrases_without_a_full_stop(case: Planted) -> None:
    for advice in case.in_fault():
        for text in (advice.recommendation, gain_of(advice).how, advice.risk):
            assert text[0].islower() or text.split()[0].isupper() or text[0].isdigit(), text
            assert not text.endswith("."), text
            assert ". " not in text, text
            assert text == " ".join(text.split()), text


@pytest.mark.parametrize("case", ZOO, ids=lambda case: f"{case.rule} {case.name}")
def test_numbers_in_texts_are_written_as_those_of_reports(case: Planted) -> None:
    for advice in case.in_fault():
        figures = [figure_text(name, value) for name, value in advice.evidence.items() if name not in _APART]
        texts = (advice.recommendation, gain_of(advice).how, advice.risk, gain_text(gain_of(advice).member()))
        for text in (*texts, *filter(None, figures)):
            assert not _CROWDED.search(text), text


@pytest.mark.parametrize("text", ["30% of", "1.2GB", "10ms", "4x as fast", "43dB"])
def test_such_numbers_would_be_seen(text: str) -> None:
    assert _CROWDED.search(text)
