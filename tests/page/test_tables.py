"""The tables of modules and ops: fold, search, sort, choose columns, by pointer and by keys; any number of rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.page.conftest import OpenPage, wait_until
from tests.page.large_sample import LARGE_BLOCKS, OPS_PER_BLOCK
from tests.report.sample import sample_view
from torchgauge.report import Options, render
from torchgauge.report.content import sections_of

if TYPE_CHECKING:
    from playwright.sync_api import Page


def names(page: Page, section: str = "modules", cell: int = 1) -> list[str]:
    return page.locator(f"#{section} .grid-row > :nth-child({cell}) > bdi").all_inner_texts()


def sort_by(page: Page, section: str, label: str) -> None:
    page.locator(f"#{section} [role=columnheader] button", has_text=label).first.click()


def go(page: Page, section: str) -> None:
    page.evaluate("(id) => tg.go(id)", section)


def test_a_folder_opens_and_folds(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    go(page, "modules")
    page.click("#modules >> text=Fold all")
    assert names(page) == ["(model)", "stem", "blocks", "shared", "unused", "\\x1b[31m[b]<i>"]
    page.locator("#modules .grid-row", has_text="stem").locator(".twig").click()
    assert names(page)[1:4] == ["stem", "0", "1"]
    page.locator("#modules .grid-row", has_text="stem").locator(".twig").click()
    assert names(page)[1:3] == ["stem", "blocks"]


def test_the_keys_move_open_and_fold(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    go(page, "modules")
    page.click("#modules >> text=Fold all")
    page.focus("#modules .grid-table")
    for key in ("Home", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert page.locator("#modules .is-active bdi").first.inner_text() == "0"
    page.keyboard.press("ArrowLeft")
    assert page.locator("#modules .is-active bdi").first.inner_text() == "stem"
    page.keyboard.press("Enter")
    assert names(page)[1:3] == ["stem", "blocks"]
    assert page.evaluate("tg.selection.get()") == "stem"


def test_a_search_shows_what_matches_with_what_it_is_in(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    go(page, "modules")
    page.fill("#modules input[type=search]", "stem relu")
    assert names(page) == ["(model)", "stem", "1"]
    assert page.locator("#modules [role=status]").inner_text().startswith("1 of ")
    page.fill("#modules input[type=search]", "no such module")
    assert page.locator("#modules .grid-empty").inner_text() == "Nothing matches."


def test_sorting_keeps_the_tree_and_orders_the_list(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    go(page, "modules")
    page.click("#modules >> text=Fold all")
    sort_by(page, "modules", "Params")
    assert names(page)[:3] == ["(model)", "blocks", "stem"]
    page.locator("#modules button", has_text="List").click()
    assert names(page)[:3] == ["(model)", "blocks", "stem"]
    sort_by(page, "modules", "Params")
    assert names(page)[-1] == "(model)"
    page.click("#modules >> text=Model order")
    assert names(page)[:4] == ["(model)", "stem", "stem.0", "stem.1"]


def test_columns_can_be_chosen(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    go(page, "modules")
    headings = page.locator("#modules [role=columnheader]")
    before = headings.all_inner_texts()
    assert "Calls" not in before
    page.click("#modules summary")
    page.locator("#modules .menu label", has_text="Calls").click()
    page.locator("#modules .menu label", has_text="MACs").click()
    assert [text for text in before if text != "MACs"] == [
        text for text in headings.all_inner_texts() if text != "Calls"
    ]


def test_ops_can_be_filtered_by_kind_text_and_module(open_page: OpenPage) -> None:
    view = sample_view()
    page = open_page(view)
    go(page, "ops")
    counter = page.locator("#ops [role=status]")
    page.select_option("#ops select", "convolution")
    assert counter.inner_text() == f"1 of {len(view.ops)}"
    page.select_option("#ops select", "")
    page.fill("#ops input[type=search]", "blocks.11.")
    assert counter.inner_text().startswith(f"{sum('blocks.11.' in row.module for row in view.ops)} of")
    page.fill("#ops input[type=search]", "")
    page.check("#ops input[type=checkbox] >> nth=0")
    page.evaluate("tg.selection.set('blocks')")
    assert counter.inner_text().startswith(f"{sum(row.module.startswith('blocks') for row in view.ops)} of")


def test_work_without_a_formula_is_not_zero(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    go(page, "ops")
    page.fill("#ops input[type=search]", "blocks.0")
    place = page.locator("#ops [role=columnheader]").all_inner_texts().index("MACs")
    cells = page.locator(f"#ops .grid-row > :nth-child({place + 1})").all_inner_texts()
    assert "?" in cells


def test_a_module_selected_in_one_table_is_selected_in_the_others(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    page.locator("#ops .grid-row", has_text="stem.0").first.click()
    assert page.evaluate("tg.selection.get()") == "stem.0"
    assert page.locator("#modules .grid-row.is-selected bdi").first.inner_text() == "0"


def test_of_twenty_thousand_rows_only_those_in_view_exist(open_page: OpenPage, large_page: Path) -> None:
    page = open_page(large_page)
    go(page, "ops")
    assert page.locator("#ops .grid-table").get_attribute("aria-rowcount") == str(OPS_PER_BLOCK * LARGE_BLOCKS + 1)
    assert page.locator("#ops .grid-row").count() < 80
    page.focus("#ops .grid-table")
    page.keyboard.press("End")
    assert page.locator("#ops .is-active > :first-child").inner_text() == f"{OPS_PER_BLOCK * LARGE_BLOCKS - 1:,}"
    sort_by(page, "ops", "MACs")
    page.locator("#ops .grid-table").evaluate("box => { box.scrollTop = 0; }")
    # Rows follow the scrolling in the next frame.
    first = f"{OPS_PER_BLOCK * (LARGE_BLOCKS - 1):,}"
    wait_until(page, "(text) => document.querySelector('#ops .grid-row').innerText.startsWith(text)", first)


def test_a_module_out_of_view_is_found_when_it_is_selected_elsewhere(open_page: OpenPage, large_page: Path) -> None:
    page = open_page(large_page)
    go(page, "modules")
    page.evaluate("(path) => tg.selection.set(path)", f"{LARGE_BLOCKS - 1}.norm")
    assert page.locator("#modules .grid-row.is-selected").count() == 1


def test_sections_of_every_format_are_drawn_from_their_blocks(open_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "ops.html"
    path.write_text(render(sample_view(), "html", Options(ops=True)), encoding="utf-8")
    page = open_page(path)
    go(page, "more")
    found = sections_of(sample_view(), Options(ops=True))
    titles = [section.title for section in found if not section.page_part]
    assert page.locator("#more h3").all_inner_texts() == titles
    rows = page.locator("#more table").first.locator("tbody tr")
    assert rows.count() > 1
    assert page.locator("#more .warning").count() == 1
