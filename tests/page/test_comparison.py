"""The page of a comparison, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.comparison.test_formats import MARKUP, pruned
from tests.report.energy_sample import estimated_energy, measured_energy
from tests.report.sample import sample_capture
from torchgauge.analysis import Analysis, Comparison

Open = Callable[[Any], Any]


@pytest.fixture
def page(open_page: Open, tmp_path: Path) -> Any:
    path = tmp_path / "comparison.html"
    Comparison([Analysis(sample_capture()), Analysis(pruned())]).save(path)
    return open_page(path)


def test_all_sections_are_drawn_and_names_are_text(page: Any) -> None:
    assert page.locator("section").count() == 3
    assert page.locator("section.waiting").count() == 0
    assert MARKUP in page.locator("#comparison").inner_text()
    assert page.locator("img").count() == 0


def test_the_figures_are_side_by_side_with_their_change(page: Any) -> None:
    row = page.locator("#comparison tr", has_text="Parameters").first.inner_text().split("\t")
    assert [cell.strip() for cell in row[:4]] == ["Parameters", "74.7 k", "70.5 k", "−5.6 %"]


def test_modules_are_filtered_searched_and_sorted(page: Any) -> None:
    section = page.locator("#compared-modules")
    assert "2 of 32 modules" in section.inner_text()
    section.get_by_label("Only what differs").uncheck()
    assert "32 of 32 modules" in section.inner_text()
    section.get_by_role("searchbox").fill("blocks fc")
    assert "12 of 32 modules" in section.inner_text()
    section.get_by_role("searchbox").fill("")
    section.get_by_role("button", name="Params A").click()
    assert section.get_by_role("row").nth(1).inner_text().startswith("(model)")
    section.get_by_label("Figure").select_option("macs")
    assert section.get_by_role("button", name="MACs B").is_visible()


def test_an_estimate_looks_like_one_and_is_not_compared(open_page: Open, tmp_path: Path) -> None:
    path = tmp_path / "energy.html"
    Comparison([Analysis(measured_energy().capture), Analysis(estimated_energy().capture)]).save(path)
    found = open_page(path)
    row = found.locator("#comparison tr", has_text="Energy")
    assert "not comparable" in row.inner_text()
    assert row.locator(".estimated-mark").inner_text().startswith("≈ ")
    assert row.locator(".fill.estimated").count() == 1


def test_only_what_differs_keeps_the_modules_above_it(open_page: Open, tmp_path: Path) -> None:
    import torchgauge

    path = tmp_path / "retyped.html"
    sides = [nn.Sequential(nn.Sequential(nn.Linear(4, 4), act)) for act in (nn.ReLU(), nn.Tanh())]
    torchgauge.compare(*sides, input_size=(1, 4), advice=False).save(path)
    section = open_page(path).locator("#compared-modules")
    assert "3 of 4 modules" in section.inner_text()
    rows = section.get_by_role("row").all_inner_texts()[1:4]
    assert [row.startswith(path) for row, path in zip(rows, ("(model)", "0", "0.1"), strict=True)] == [True] * 3
