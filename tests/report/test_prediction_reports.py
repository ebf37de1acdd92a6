"""Reports of `fit` and `forecast` in every format, for a target whose name is hostile."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields
from typing import Any
from xml.etree import ElementTree

import pytest
from torch import nn

import torchgauge as tg
from torchgauge.facts import Bounds, FitFacts, ForecastFacts
from torchgauge.report import FitReport, ForecastReport, PredictionReport, suffixes_of

HOSTILE = "=cmd()\x1b[31m<i>&\u202e\ud800"
SIZES = ("allocated_bytes", "reserved_bytes", "used_bytes", "required_bytes")


def filled(kind: type, **known: Any) -> Any:
    """A record whose other members are plain numbers or empty."""
    values: dict[str, Any] = {"str": "x", "int": 2**30, "float": 0.5, "dict": {}, "list": []}
    guesses = {item.name: values.get(str(item.type).partition("[")[0]) for item in fields(kind)}
    return kind(**(guesses | known))


def fit_report() -> FitReport:
    bounds = {name: Bounds(2**29, 2**31) for name in SIZES}
    row = filled(FitFacts, target=HOSTILE, verdict="fits", bounds=bounds, by_class={"parameters": 2**30}, peak={})
    return FitReport([row, row])


def forecast_report() -> ForecastReport:
    row = filled(ForecastFacts, target=HOSTILE, bound="host", fit="fits", batch=1, low_s=0.4, high_s=0.6)
    return ForecastReport([row, row])


REPORTS = [(make, suffix) for make in (fit_report, forecast_report) for suffix in suffixes_of(make().kind)]


@pytest.mark.parametrize(("make", "suffix"), REPORTS, ids=[f"{make.__name__}{suffix}" for make, suffix in REPORTS])
def test_a_hostile_name_is_text_in_every_format(make: Any, suffix: str) -> None:
    report: PredictionReport = make()
    text = report.render(f"report{suffix}")
    text.encode()
    acting = ("\x1b", "\u202e", "\ud800", *(("<i>",) if suffix in (".html", ".svg", ".md", ".tex") else ()))
    assert [piece for piece in acting if piece in text] == []
    if suffix == ".svg":
        assert ElementTree.fromstring(text).tag.endswith("svg")
    if suffix == ".csv":
        assert {row["target"][:2] for row in csv.DictReader(io.StringIO(text))} == {"'="}
    if suffix == ".json":
        rows = json.loads(text)[report.kind]
        assert rows[0]["target"] == HOSTILE


def page_data(report: PredictionReport) -> Any:
    page = report.render("report.html")
    return json.loads(page.partition('id="payload">')[2].partition("</script>")[0])


@pytest.mark.parametrize("make", [fit_report, forecast_report])
def test_the_page_has_the_answers_first_and_the_parts_of_every_page(make: Any) -> None:
    report: PredictionReport = make()
    data, page = page_data(report), report.render("report.html")

    cards = [(card["label"], card["value"]) for card in data["overview"]["cards"]]
    assert cards == [(answer.label, answer.value) for answer in report.answers()]
    assert cards
    assert [section["title"] for section in data["sections"]]
    for part in ('id="nav"', 'id="theme"', "Content-Security-Policy", '<template id="picture"><svg'):
        assert part in page


def test_a_model_that_does_not_fit_is_an_alarm() -> None:
    bounds = {name: Bounds(2**29, 2**31) for name in SIZES}
    row = filled(FitFacts, target="net", verdict="does not fit", bounds=bounds, by_class={"parameters": 2**30}, peak={})

    first = page_data(FitReport([row]))["overview"]["cards"][0]
    assert (first["value"], first["kind"]) == ("does not fit", "alarm")


def test_predictions_show_themselves_in_a_notebook() -> None:
    model = nn.Linear(64, 64)
    fit, forecast = tg.fit(model, (8, 64), on="h200"), tg.forecast(model, (8, 64), on=["h200", "a100"])
    for found in (fit, tg.forecast(model, (8, 64), on="h200"), forecast, tg.fit(model, (8, 64), on="h200,a100")):
        text = found._repr_html_()
        assert text.startswith("<div><b>Linear</b>")
        assert "<table" in text
