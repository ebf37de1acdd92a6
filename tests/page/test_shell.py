"""The page around its sections: texts of numbers, navigation, themes, narrow screens, printing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.page.chart_samples import SAMPLES
from tests.page.conftest import OpenPage
from tests.report.sample import sample_view
from torchgauge import units
from torchgauge.report import save

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NUMBERS = (
    0, 1, 7, 42, 999, 999.4, 999.5, 1000, 1023, 1024, 1500, 9995, 9.994, 9.995, 99.94, 99.95, 0.125, 0.375, 0.5625,
    2.5, 12.25, 12.35, 12345, 12450, 12550, 1.2345e10, 1.005, 0.005, 1e-3, 9.995e-4, 3.21e-3, 1.5e-7, 8e-10, 4.5e-13,
    123456.0, 25557032, 4089184256, 2**40, 1e18, -1.5, -12.25, -3e-5,
)  # fmt: skip
FORMS: dict[str, Callable[[Any], str]] = {
    "count": units.format_count,
    "bytes": units.format_bytes,
    "seconds": units.format_seconds,
    "joules": units.format_joules,
    "watts": units.format_watts,
    "grams": units.format_grams,
    "percent": units.format_percent,
    "value": units.format_value,
    "decibels": units.format_decibels,
}


def test_numbers_read_as_in_every_other_report(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    shown = page.evaluate(
        "([forms, values]) => forms.map((form) => values.map((value) => tg.format[form](value)))",
        [list(FORMS), list(NUMBERS)],
    )
    assert dict(zip(FORMS, shown, strict=True)) == {
        name: [form(value) for value in NUMBERS] for name, form in FORMS.items()
    }


def test_whole_numbers_shapes_rates_and_absent_values_have_their_texts(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    assert page.evaluate("[0, 999, 25557032].map(tg.format.exact)") == ["0", "999", "25,557,032"]
    assert page.evaluate("[[1, 3, 224], []].map(tg.format.shape)") == ["1×3×224", "scalar"]
    assert page.evaluate("[tg.format.rate(7.82e14, 'FLOP'), tg.format.rate(85, 'FLOP'), tg.format.rate(258)]") == [
        "782 TFLOP/s",
        "85 FLOP/s",
        "258/s",
    ]
    assert set(page.evaluate("Object.values(tg.format).map((form) => form(null))")) == {"–"}


def test_the_overview_shows_what_the_model_is_and_warns(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    view = sample_view()
    assert page.locator("h1").inner_text() == "sample.py:Sample"
    cards = page.locator(".card").all_inner_texts()
    assert any(units.format_exact(view.totals.params) in card for card in cards)
    assert any(units.format_count(view.totals.macs) in card for card in cards)
    assert "autocast was on" in page.locator(".warnings").inner_text()
    assert page.title() == "sample.py:Sample · torchgauge"


def test_every_section_is_in_the_navigation_and_drawn_when_it_is_asked_for(open_page: OpenPage) -> None:
    page = open_page(sample_view(), height=400, is_drawn=False)
    assert page.locator("#ops.waiting").count() == 1
    page.click("nav >> text=Ops")
    assert page.locator("#ops.waiting").count() == 0
    assert page.locator("#ops .grid-row").count() > 0
    page.locator("nav a[aria-current]", has_text="Ops").wait_for()
    links = page.locator("nav li a").evaluate_all("links => links.map((link) => link.getAttribute('href').slice(1))")
    assert links == page.locator("main > section").evaluate_all("sections => sections.map((section) => section.id)")


def test_a_link_to_a_section_opens_there(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(sample_view(), height=400, is_drawn=False)
    page.goto(f"{page.url}#ops")
    page.reload()
    page.locator("#ops .grid-row").first.wait_for()
    page.wait_for_timeout(500)  # for what could still move it: sections drawn late, the browser's own scrolling
    assert 0 <= page.evaluate("document.getElementById('ops').getBoundingClientRect().top") < 100


def test_a_section_that_breaks_says_so_and_the_others_stay(open_page: OpenPage) -> None:
    page = open_page(sample_view(), is_quiet=False)
    page.evaluate("tg.section({id: 'bad', title: 'Bad', draw() { throw new Error('no such thing'); }}); tg.drawAll()")
    assert page.locator("#bad .warning").inner_text() == "This section could not be drawn: no such thing"
    assert page.locator("#ops .grid-row").count() > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_the_reader_chooses(open_page: OpenPage, scheme: str) -> None:
    page = open_page(sample_view(), scheme=scheme)
    brightness = "parseInt(tg.color('paper').slice(1, 3), 16) > 127"
    assert page.evaluate(brightness) is (scheme == "light")
    page.click("#theme")
    assert page.evaluate(brightness) is (scheme == "dark")
    page.click("#theme")
    assert page.evaluate(brightness) is (scheme == "light")


def test_a_phone_need_not_scroll_sideways(open_page: OpenPage) -> None:
    page = open_page(sample_view(), width=390, height=844)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_everything_is_drawn_before_it_is_printed(open_page: OpenPage) -> None:
    page = open_page(sample_view(), height=300, is_drawn=False)
    assert page.locator("section.waiting").count() > 0
    assert page.pdf().startswith(b"%PDF")
    assert page.locator("section.waiting").count() == 0


def test_a_table_first_drawn_for_printing_has_its_rows_on_paper(open_page: OpenPage, large_page: Path) -> None:
    page = open_page(large_page, height=300, is_drawn=False)
    assert "waiting" in str(page.locator("#ops").get_attribute("class"))
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#ops .grid-row").count() == 250
    assert page.locator("#ops > .body > .note").inner_text() == "and 19,750 more rows"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("#ops .grid-row").count() < 100


@pytest.mark.parametrize("name", ["measured", "energy", "weights", "advised"])
def test_the_tab_key_stops_only_where_something_is_said(open_page: OpenPage, name: str) -> None:
    page = open_page(SAMPLES[name]())
    # Chromium takes any SVG element with a listener for the focus for a stop.
    silent = """() => {
      const described = (element) => element.getAttribute("aria-label") || element.getAttribute("aria-describedby")
        || element.textContent.trim() || element.closest("label");
      return described(document.activeElement) ? null : document.activeElement.outerHTML.slice(0, 200);
    }"""
    for _ in range(300):
        page.keyboard.press("Tab")
        assert page.evaluate(silent) is None
        if page.evaluate("document.activeElement === document.body"):
            break


def test_a_menu_is_closed_by_escape_and_by_a_click_elsewhere(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    page.evaluate("tg.go('modules')")
    menu = page.locator("#modules details.menu")
    menu.locator("summary").click()
    page.keyboard.press("Escape")
    assert menu.get_attribute("open") is None
    menu.locator("summary").click()
    assert menu.get_attribute("open") is not None
    page.locator("#modules-title").click()
    assert menu.get_attribute("open") is None


def test_without_scripts_the_figures_are_there_as_text(browser: Browser, tmp_path: Path) -> None:
    view = SAMPLES["estimated"]()
    save(view, tmp_path / "page.html")
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    text = page.locator("main").inner_text()
    context.close()
    assert f"{view.totals.params:,}" in text
    assert "≈" in text
    assert "estimated; between" in text


def test_a_broken_link_to_a_section_is_ignored(open_page: OpenPage, tmp_path: Path) -> None:
    save(sample_view(), tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    page.evaluate("location.hash = '#%E0%A4%A'")
    assert page.locator("h1").count() == 1


def test_a_slash_goes_to_the_search_of_the_section(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    page.click("nav >> text=Ops")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement === document.querySelector('#ops input[type=search]')")


def test_attributes_that_act_cannot_come_from_data(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    attempts = "[{href: 'javascript:alert(1)'}, {onclick: 'alert(1)'}]"
    refused = (
        f"{attempts}.filter((one) => {{ try {{ tg.el('a', one); return false; }} catch {{ return true; }} }}).length"
    )
    assert page.evaluate(refused) == 2


def test_estimates_do_not_look_like_measurements(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    text = "tg.figureText({form: 'joules', kind: KIND}, 0.002)"
    assert page.evaluate(text.replace("KIND", "'estimated'")) == "≈ 2.00 mJ"
    assert page.evaluate(text.replace("KIND", "'measured'")) == "2.00 mJ"
    drawn = "tg.chart.bars(document.body, [{label: 'a', value: 1, text: '2 mJ', estimated: true}]).textContent"
    assert "≈ 2 mJ" in page.evaluate(drawn)
    assert "estimated, not measured" in page.evaluate(drawn)


def test_the_navigation_of_a_phone_is_one_line(open_page: OpenPage) -> None:
    page = open_page(sample_view(), width=390, height=844)
    assert page.locator("nav").evaluate("nav => nav.offsetHeight") < 60
    assert page.locator("#theme").evaluate("button => button.getBoundingClientRect().right") <= 390
