"""The page shows the figures of the JSON document, formatted by units.py: every cell, every card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.page.chart_samples import SAMPLES
from torchgauge.facts import View
from torchgauge.units import format_bytes, format_count, format_exact, format_joules, format_percent, format_seconds

Open = Callable[..., Any]
Form = Callable[[Any], str]


def moved(row: Mapping[str, Any]) -> int:
    return int(row["bytes_read"] + row["bytes_written"])


def estimated(value: float | None) -> str:
    return format_joules(value) if value is None else f"≈ {format_joules(value)}"


# By the words of the menu of columns: the value of a row of the document, and its form.
MODULES: dict[str, tuple[Callable[[Mapping[str, Any]], Any], Form]] = {
    "Parameters": (lambda row: row["params"], format_count),
    "Parameter memory": (lambda row: row["param_bytes"], format_bytes),
    "MACs": (lambda row: row["macs"], format_count),
    "FLOPs": (lambda row: row["flops"], format_count),
    "Bytes moved": (moved, format_bytes),
    "Activations": (lambda row: row["activation_bytes"], format_bytes),
    "Time, measured": (lambda row: row["time_s"], format_seconds),
    "Self time": (lambda row: row["self_time_s"], format_seconds),
    "Energy, measured": (lambda row: row["energy_j"], format_joules),
    "Energy, estimated": (lambda row: row["estimated_energy_j"], estimated),
    "Trainable": (lambda row: row["trainable_params"], format_count),
    "Bytes read": (lambda row: row["bytes_read"], format_bytes),
    "Bytes written": (lambda row: row["bytes_written"], format_bytes),
    "Ops": (lambda row: row["ops"], format_exact),
    "Calls": (lambda row: row["calls"], format_exact),
}
OPS: dict[str, tuple[Callable[[Mapping[str, Any]], Any], Form]] = {
    "#": (lambda row: row["index"], format_exact),
    "MACs": (lambda row: None if row["status"] == "uncounted" else row["macs"], format_count),
    "FLOPs": (lambda row: None if row["status"] == "uncounted" else row["flops"], format_count),
    "Moved": (moved, format_bytes),
    "Bytes read": (lambda row: row["bytes_read"], format_bytes),
    "Bytes written": (lambda row: row["bytes_written"], format_bytes),
    "FLOPs per byte": (lambda row: row["arithmetic_intensity"], format_count),
    "Live": (lambda row: row["live_bytes"], format_bytes),
    "Time": (lambda row: row["time_s"], format_seconds),
    "CPU time": (lambda row: row["cpu_time_s"], format_seconds),
    "Of the roof": (lambda row: row["roof_share"], format_percent),
    "Energy": (lambda row: row["energy_j"], format_joules),
    "Energy, estimated": (lambda row: row["estimated_energy_j"], estimated),
}
MISSING = ("–", "-", "?")
MEASURED = [name for name in SAMPLES if name not in ("long names", "weights")]


def cells(page: Any, section: str) -> dict[str, list[str]]:
    """The texts of every column there is, by its name; all rows of a sample are in the view."""
    area = page.locator(f"#{section}")
    area.locator("summary").click()
    for box in area.locator("details input").all():
        box.check()
    headings = area.locator("[role=columnheader] button").evaluate_all("all => all.map((each) => each.title)")
    rows = area.locator(".grid-row").evaluate_all(
        "all => all.map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    return {str(heading): [str(row[place]) for row in rows] for place, heading in enumerate(headings)}


def expected(rows: list[dict[str, Any]], column: tuple[Callable[[Mapping[str, Any]], Any], Form]) -> list[str]:
    value, form = column
    return ["–" if value(row) is None else form(value(row)) for row in rows]


@pytest.mark.parametrize("name", MEASURED)
def test_every_number_of_the_modules_is_that_of_the_document(open_page: Open, name: str) -> None:
    view = SAMPLES[name]()
    page = open_page(view, width=2600)
    page.evaluate("tg.go('modules')")
    page.get_by_role("button", name="List").click()
    shown = cells(page, "modules")
    numbers = shown.keys() & MODULES.keys()
    assert {"Parameters", "MACs", "FLOPs", "Bytes moved", "Activations"} <= numbers
    for key in numbers:
        assert shown[key] == expected(view.to_dict()["modules"], MODULES[key]), key


@pytest.mark.parametrize("name", MEASURED)
def test_every_number_of_the_ops_is_that_of_the_document(open_page: Open, name: str) -> None:
    view = SAMPLES[name]()
    shown = cells(open_page(view, width=2600), "ops")
    numbers = shown.keys() & OPS.keys()
    assert {"#", "MACs", "FLOPs", "Moved", "Live"} <= numbers
    for key in numbers:
        texts = ["–" if text in MISSING else text for text in shown[key]]
        assert texts == expected(view.to_dict()["ops"], OPS[key]), key


def cards(page: Any) -> dict[str, str]:
    found = page.locator("#overview .card")
    names = found.evaluate_all("all => all.map((card) => card.querySelector('dt').firstChild.textContent)")
    return dict(zip(names, found.locator(".big").all_inner_texts(), strict=True))


@pytest.mark.parametrize("name", MEASURED)
def test_the_ten_figures_of_the_overview_are_the_totals_of_the_document(open_page: Open, name: str) -> None:
    view: View = SAMPLES[name]()
    document = view.to_dict()
    totals, shown = document["totals"], cards(open_page(view))
    assert len(shown) == 10
    assert shown["Parameters"] == format_count(totals["params"])
    assert shown["Memory"] == format_bytes(totals["total_bytes"])
    assert shown["MACs"] == format_count(totals["macs"])
    assert shown["FLOPs"] == format_count(totals["flops"])
    assert shown["Bytes moved"] == format_bytes(moved(totals))
    assert shown["Peak activations"] == format_bytes(totals["peak_activation_bytes"])
    assert shown.get("Latency") == (totals["time_s"] and format_seconds(totals["time_s"]))
    assert shown.get("Energy") == energy_text(document)


def energy_text(document: Mapping[str, Any]) -> str | None:
    if document["totals"]["energy_j"] is not None:
        return format_joules(document["totals"]["energy_j"])
    found = (document["energy"] or {}).get("estimated_joules")
    return found and f"≈ {format_joules(found['value'])}"
