"""Names from a model are text: they run nothing, break nothing, and the page stays within its width."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.page.conftest import OpenPage
from tests.report.sample import HOSTILE, sample_capture
from torchgauge.facts import Capture, TargetRecord, View
from torchgauge.report import visible

NAMES = {
    "end of script": "</script><script>window.broken = true</script>",
    "image": '<img src=x onerror="window.broken = true">',
    "quotes": "\"'`${window.broken = true}`",
    "comment": "<!--<script>",
    "right to left": "abc\u202e\u2066evil\u2069\u200fxyz",
    "hebrew": "שכבה",
    "separators": "line\u2028paragraph\u2029end",
    "long": "x" * 10_000,
    "markup": "<b>&amp;</b>",
}


def renamed(name: str) -> Capture:
    """The sample with the name as its target, its class, a module, an op's module, and an input."""
    capture = sample_capture()
    modules = tuple(
        replace(record, path=name if record.path == HOSTILE else record.path, type=name) for record in capture.modules
    )
    ops = tuple(replace(op, module=name) if op.module == HOSTILE else op for op in capture.ops)
    inputs = tuple(replace(entry, name=name) for entry in capture.inputs)
    run = replace(capture.run, warnings=(f"a warning of {name}",))
    return replace(capture, target=TargetRecord(name), modules=modules, ops=ops, inputs=inputs, run=run)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_hostile_name_is_text_and_the_page_stays_whole(open_page: OpenPage, name: str) -> None:
    page = open_page(View(renamed(name)))
    assert page.evaluate("window.broken") is None
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert page.evaluate("tg.part('overview').name") == visible(name)
    assert visible(name)[:60] in page.locator("h1").inner_text()
    assert page.evaluate("tg.rowOf(NAME) !== undefined".replace("NAME", "tg.part('overview').name"))
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


@pytest.mark.parametrize("width", [1280, 390])
def test_ten_thousand_characters_do_not_break_the_layout(open_page: OpenPage, width: int) -> None:
    page = open_page(View(renamed(NAMES["long"])), width=width, height=844)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("h1").evaluate("heading => heading.offsetHeight") < 500
    assert page.locator("#modules .grid-row").first.evaluate("row => row.offsetHeight") == 26


def test_a_hidden_mark_of_direction_is_shown_as_an_escape(open_page: OpenPage) -> None:
    page = open_page(View(renamed(NAMES["right to left"])))
    assert "abc\\u202e\\u2066evil\\u2069\\u200fxyz" in page.locator("h1").inner_text()


def test_a_search_takes_a_hostile_name_as_it_is_shown(open_page: OpenPage) -> None:
    page = open_page(View(renamed(NAMES["image"])))
    page.evaluate("tg.go('modules')")
    page.fill("#modules input[type=search]", "<img src=x")
    assert page.locator("#modules .grid-row").count() > 1
