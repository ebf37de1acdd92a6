"""The charts and text sections in a real browser."""

from __future__ import annotations

from typing import Any

import pytest

from tests.page.chart_samples import SAMPLES, all_measured, part_of, refuted, roofed
from tests.page.conftest import OpenPage, wait_until
from tests.report.energy_sample import estimated_energy, measured_energy
from tests.report.sample import sample_view
from tests.report.weights_sample import APART, weights_view


def shown(page: Any, section: str) -> Any:
    page.evaluate("(id) => tg.go(id)", section)
    return page.locator(f"#{section}")


@pytest.mark.parametrize("name", SAMPLES)
def test_every_section_is_drawn_in_both_themes_and_on_a_phone(open_page: OpenPage, name: str) -> None:
    page = open_page(SAMPLES[name]())
    for is_dark, width in ((False, 1280), (True, 390)):
        page.emulate_media(color_scheme="dark" if is_dark else "light")
        page.set_viewport_size({"width": width, "height": 844})
        page.reload()
        page.evaluate("tg.drawAll()")
        assert page.locator("section.waiting").count() == 0
        assert "could not be drawn" not in page.locator("main").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["measured", "weights"])
def test_names_are_text_in_every_section(open_page: OpenPage, name: str) -> None:
    page = open_page(SAMPLES[name]())
    assert page.locator("main i").count() == 0
    assert "[b]<i>" in (page.locator("main").text_content() or "")


def test_the_distribution_switches_its_figure(open_page: OpenPage) -> None:
    section = shown(open_page(sample_view()), "distribution")
    before = section.inner_text()
    section.get_by_role("button", name="Bytes moved").click()
    assert "KiB" in section.inner_text()
    assert section.inner_text() != before


def test_the_roofline_has_a_dot_for_each_op_with_arithmetic(open_page: OpenPage) -> None:
    section = shown(open_page(roofed()), "roofline")
    assert section.locator("circle").count() == 3
    assert section.locator("path.line").count() == 1
    section.locator("circle").first.focus()
    assert "FLOPs per byte" in section.page.locator("#tip").inner_text()


def test_without_times_the_roofline_is_a_histogram_of_the_shapes(open_page: OpenPage) -> None:
    section = shown(open_page(sample_view()), "roofline")
    assert section.locator("circle").count() == 0
    assert section.locator("rect").count() == len(part_of(sample_view(), "roofline")["histogram"])
    assert "No roofline" in section.inner_text()


def test_the_peak_of_memory_is_marked_and_selects_its_module(open_page: OpenPage) -> None:
    section = shown(open_page(all_measured()), "memory")
    assert "39.1 KiB" in section.inner_text()
    section.locator("circle.clickable").press("Enter")
    assert section.page.evaluate("tg.selection.get()") == "shared"


def test_who_took_the_time_is_ranked_by_modules_and_by_ops(open_page: OpenPage) -> None:
    section = shown(open_page(all_measured()), "time")
    assert "blocks.0–11.fc" in section.inner_text()
    section.get_by_role("button", name="Ops", exact=True).click()
    assert section.get_by_role("table", name="Slowest ops").locator("tbody tr").count() == 5
    assert "not scaled" in section.inner_text()


def test_sweeps_are_plots_with_their_failures(open_page: OpenPage) -> None:
    section = shown(open_page(all_measured()), "sweeps")
    assert section.locator("svg.chart").count() == 3 + 2 + 1
    assert "the device ran out of memory" in section.inner_text()


def test_an_estimate_looks_different_from_a_measurement(open_page: OpenPage) -> None:
    estimated = shown(open_page(estimated_energy()), "energy")
    measured = shown(open_page(measured_energy()), "energy")
    assert estimated.locator(".fill.estimated").count() == estimated.locator(".fill").count() > 0
    assert measured.locator(".fill").count() > 0
    assert measured.locator(".fill.estimated").count() == 0
    assert "≈" in estimated.inner_text()
    assert "≈" not in measured.inner_text()


def test_advice_is_copied_and_withdrawn_pieces_are_separate(open_page: OpenPage) -> None:
    page = open_page(refuted())
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    section = shown(page, "advice")
    assert section.locator("ol.advice > li").count() == 2
    assert "it is slower" in section.locator("ul.withdrawn").inner_text()
    button = section.locator(".plan").get_by_role("button", name="Copy")
    # It says "Copied" for a moment only, which a slow machine may miss.
    button.evaluate("""button => {
      window.said = [];
      new MutationObserver(() => said.push(button.textContent)).observe(button, { childList: true });
    }""")
    button.click()
    wait_until(page, "said.includes('Copied')")
    assert page.evaluate("navigator.clipboard.readText()").startswith("def optimise(model):\n")


def test_the_method_lists_every_caveat(open_page: OpenPage) -> None:
    text = shown(open_page(sample_view()), "method").inner_text()
    for caveat in ("autocast was on", "a branch on the values of x", "assumed", "my::mix", "unused", "--inference"):
        assert caveat in text


def test_a_cell_of_the_heat_map_shows_its_tensor(open_page: OpenPage) -> None:
    section = shown(open_page(weights_view()), "weights")
    cells = section.locator("svg.heat").first.locator("rect")
    assert cells.count() == 3 * 8
    assert "All parameters" in section.locator(".tensor-panel").inner_text()
    cells.nth(8 + APART).click()
    assert f"blocks.{APART}.mlp.up.weight" in section.locator(".tensor-panel").inner_text()
    assert cells.nth(8 + APART).evaluate("(cell) => cell.style.fill") != cells.nth(8).evaluate("(c) => c.style.fill")


def test_the_heat_map_is_walked_with_the_keyboard_and_switches_its_figure(open_page: OpenPage) -> None:
    section = shown(open_page(weights_view()), "weights")
    cells = section.locator("svg.heat").first.locator("rect")
    cells.first.focus()
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        section.page.keyboard.press(key)
    assert "blocks.1.mlp.up.weight" in section.locator(".tensor-panel").inner_text()
    before = cells.first.evaluate("(cell) => cell.style.fill")
    section.locator(".controls select").select_option("sparsity")
    assert cells.first.evaluate("(cell) => cell.style.fill") != before


def test_tensors_are_found_by_words_and_sorted(open_page: OpenPage) -> None:
    section = shown(open_page(weights_view()), "weights")
    section.get_by_role("searchbox").fill("mlp 5")
    assert section.locator(".grid-row").count() == 1
    section.get_by_role("searchbox").fill("mlp")
    section.get_by_role("button", name="Std", exact=True).click()
    assert f"blocks.{APART}.mlp.up" in section.locator(".grid-row").first.inner_text()


def test_the_pruning_curve_of_evenly_spread_values_is_its_closed_form(open_page: OpenPage) -> None:
    """Of values spread evenly around zero a share s has s³ of the energy: at an error e, s = e^(2/3)."""
    page = open_page(sample_view())
    errors = [0.01, 0.05, 0.2, 1.0]
    curve = "([counts, zeros, errors]) => tg.pruningCurve([-1, 1, ...counts], zeros, errors)"
    assert page.evaluate(curve, [[100] * 64, 0, errors]) == pytest.approx([e ** (2 / 3) for e in errors], rel=0.02)
    # Half of the values are exact zeros: they go first, and cost nothing.
    halved = page.evaluate(curve, [[100] * 32 + [6500] + [100] * 31, 6400, errors])
    assert halved == pytest.approx([0.5 + e ** (2 / 3) / 2 for e in errors], rel=0.02)
