"""The computation graph on the page, in a real browser; and that Python and the page draw the same."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.page.large_sample import large_view
from tests.report.deep_sample import deep_capture
from tests.report.energy_sample import estimated_energy
from tests.report.graph_sample import Line, graph_view, looping_view, module, residual_view, shrinking_view
from tests.report.sample import HOSTILE, sample_view
from tests.report.stored_sample import stored_view
from torchgauge.facts import View
from torchgauge.report import Options
from torchgauge.report.graph import CATEGORY_COLORS, DARK, LIGHT, READABLE_LEVELS, READABLE_NODES
from torchgauge.report.page import PARTS

Open = Callable[..., Any]
ASSETS = Path(__file__).parents[2] / "src" / "torchgauge" / "report" / "page" / "assets"


def opened(open_page: Open, view: View, **options: Any) -> Any:
    page = open_page(view, **options)
    page.evaluate("tg.go('graph')")
    return page.locator("#graph")


def boxes(section: Any) -> list[str]:
    return [str(text) for text in section.locator("svg.graph [role=button]").evaluate_all(
        "all => all.map((each) => each.getAttribute('aria-label'))"
    )]  # fmt: skip


def box(section: Any, name: str) -> Any:
    return section.locator(f'svg.graph [role=button][aria-label^="{name}"]')


def flowing_large(blocks: int) -> View:
    capture = large_view(blocks).capture
    ops = (dataclasses.replace(op, producers=(op.index - 1 if op.index else None,)) for op in capture.ops)
    return View(dataclasses.replace(capture, ops=tuple(ops)))


def test_it_opens_at_a_readable_depth_with_equal_blocks_as_one(open_page: Open) -> None:
    section = opened(open_page, residual_view())
    assert boxes(section) == [
        "x, input", "relu, ReLU", "fc, Linear · 1.02 k MACs", "act, ReLU", "add", "head, Linear · 1.02 k MACs",
        "output", "blocks.0–2 ×3, Block · 1.02 k MACs each",
    ]  # fmt: skip
    assert "7 boxes of 11 ops. 7 connections" in section.locator("figcaption").inner_text()


def test_a_click_closes_and_opens_a_module_in_place(open_page: Open) -> None:
    section = opened(open_page, residual_view())
    box(section, "blocks.0–2").click()
    assert box(section, "fc").count() == 0
    assert box(section, "blocks.0–2").get_attribute("aria-expanded") == "false"
    box(section, "blocks.0–2").click()
    assert box(section, "fc").count() == 1


def test_a_run_of_equal_blocks_unfolds_and_folds(open_page: Open) -> None:
    section = opened(open_page, residual_view())
    box(section, "blocks.0–2").click()
    section.get_by_role("button", name="Show all 3").click()
    assert [name for name in boxes(section) if name.startswith("blocks")] == [
        f"blocks.{n}, Block · 1.02 k MACs" for n in range(3)
    ]
    section.get_by_role("button", name="Show 3 as one").click()
    assert box(section, "blocks.0–2").count() == 1


def test_the_keyboard_goes_from_box_to_box_and_opens_one(open_page: Open) -> None:
    section = opened(open_page, residual_view())
    page = section.page
    box(section, "x, input").focus()
    page.keyboard.press("ArrowDown")
    focused = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(focused) == "relu, ReLU"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused).startswith("blocks.0–2")
    page.keyboard.press("Enter")
    assert box(section, "fc").count() == 0
    assert page.evaluate(focused).startswith("blocks.0–2")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    assert box(section, "fc").count() == 0


def test_details_show_shapes_figures_and_neighbours(open_page: Open) -> None:
    section = opened(open_page, residual_view())
    box(section, "add").click()
    details = section.locator("aside").inner_text()
    assert "aten::add" in details
    assert "2×8 float32, 64 B" in details
    assert re.search(r"FLOPs\s+16\s+48", details)
    section.locator("aside").get_by_role("button", name="act").click()
    assert "ReLU" in section.locator("aside").inner_text()


def test_a_search_opens_what_hides_the_thing_it_finds(open_page: Open) -> None:
    section = opened(open_page, residual_view())
    box(section, "blocks.0–2").click()
    section.get_by_role("searchbox").fill("blocks.1.fc")
    section.locator(".graph-results button").first.click()
    assert "is-selected" in (box(section, "fc").get_attribute("class") or "")
    section.get_by_role("searchbox").fill("no such thing")
    assert "Nothing has this name." in section.locator(".graph-results").inner_text()


def test_boxes_are_coloured_by_any_figure(open_page: Open) -> None:
    section = opened(open_page, residual_view())
    fill = "each => getComputedStyle(each.querySelector('.graph-box')).fill"
    plain = box(section, "fc").evaluate(fill)
    section.get_by_label("Colour").select_option("macs")
    assert box(section, "fc").evaluate(fill) != plain
    assert box(section, "relu").evaluate(fill) == plain
    # The box represents three blocks.
    assert box(section, "fc").get_attribute("aria-label") == "fc, Linear · 3.07 k"


def test_an_estimate_does_not_look_like_a_measurement(open_page: Open) -> None:
    section = opened(open_page, estimated_energy())
    dashes = "() => getComputedStyle(document.querySelector('.graph-box')).strokeDasharray"
    assert section.page.evaluate(dashes) == "none"
    section.get_by_label("Colour").select_option("estimated_energy_j")
    assert section.page.evaluate(dashes) != "none"
    assert "≈" in " ".join(boxes(section))
    assert "estimated" in section.locator(".legend").inner_text()


def test_the_selection_is_shared_with_the_rest_of_the_page(open_page: Open) -> None:
    section = opened(open_page, residual_view())
    section.page.evaluate("tg.selection.set('blocks.2.act')")
    assert "is-selected" in (box(section, "act").get_attribute("class") or "")
    box(section, "head").click()
    assert section.page.evaluate("tg.selection.get()") == "head"


def test_zooming_changes_the_size_and_fit_shows_all(open_page: Open) -> None:
    section = opened(open_page, residual_view())
    width = "() => document.querySelector('svg.graph').getBoundingClientRect().width"
    before = section.page.evaluate(width)
    section.get_by_role("button", name="Larger").click()
    assert section.page.evaluate(width) == pytest.approx(before * 1.25, abs=2)
    section.get_by_role("button", name="Fit", exact=True).click()
    fits = "() => { const v = document.querySelector('.graph-view'); return v.scrollHeight <= v.clientHeight + 1; }"
    assert section.page.evaluate(fits)


def test_a_loop_goes_back_with_a_dashed_line(open_page: Open) -> None:
    section = opened(open_page, looping_view(20))
    assert section.locator(".graph-wire.is-back").count() > 0
    assert "20 calls" in " ".join(boxes(section))


def test_every_input_is_a_separate_box(open_page: Open) -> None:
    lines: list[Line] = [("relu", "", ("a",)), ("add", "", ("b", 0)), ("add", "", ("c", 1))]
    section = opened(open_page, graph_view([], lines, inputs=("a", "b", "c")))
    assert boxes(section) == ["a, input", "b, input", "c, input", "relu", "add", "add", "output"]


def test_a_single_op_has_a_flow_too(open_page: Open) -> None:
    section = opened(open_page, graph_view([module("act", "ReLU")], [("relu", "act", ("x",))]))
    assert "not recorded" not in section.inner_text()


def test_a_module_that_is_called_again_shows_what_it_makes_there(open_page: Open) -> None:
    section = opened(open_page, shrinking_view())
    assert section.locator(".graph-shape").all_text_contents() == ["2×8", "2×8", "2×8", "1×4"]


def test_modules_nested_thousands_deep_are_drawn(open_page: Open) -> None:
    section = opened(open_page, View(deep_capture()))
    assert section.locator(".graph-frame").count() == READABLE_LEVELS - 1


def test_without_flow_or_without_code_it_says_so(open_page: Open) -> None:
    section = opened(open_page, sample_view())
    assert "was not recorded" in section.inner_text()
    assert section.locator(".graph-wire").count() == 0
    section = opened(open_page, stored_view())
    assert "There is no code" in section.inner_text()


def test_a_hostile_name_is_text(open_page: Open) -> None:
    section = opened(open_page, sample_view(), scheme="dark")
    assert HOSTILE.replace("\x1b", "\\x1b") in section.locator("svg.graph").text_content()


def test_it_fits_a_phone(open_page: Open) -> None:
    section = opened(open_page, residual_view(), width=390, height=844)
    assert section.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert box(section, "fc").is_visible()


@pytest.mark.parametrize("blocks", [500, pytest.param(5000, marks=pytest.mark.slow)])
def test_of_thousands_of_ops_a_readable_part_is_laid_out(open_page: Open, blocks: int) -> None:
    section = opened(open_page, flowing_large(blocks))
    assert len(boxes(section)) == READABLE_NODES + 1
    box(section, f"… {blocks - READABLE_NODES:,} more").click()
    assert len(boxes(section)) == READABLE_NODES + 301
    section.get_by_role("searchbox").fill(f"{blocks - 50}.norm")
    section.locator(".graph-results button").first.click()
    assert "is-selected" in (section.locator(".graph-node.is-selected").get_attribute("class") or "")
    assert box(section, f"… {blocks - 50 - 15:,} earlier").count() == 1
    assert len(boxes(section)) < 50


def test_the_part_holds_numbers_and_no_names_twice() -> None:
    found: Any = PARTS["graph"](residual_view(), Options())
    assert found is not None
    assert found["steps"]["op"] == list(range(11))
    assert found["runs"] == [[2, 3, "blocks.0–2"]]
    assert found["open"] == [0, 2]
    links = found["links"]
    pairs = [(source, source + ahead) for source, ahead in zip(links["source"], links["ahead"], strict=True)]
    assert pairs[:4] == [(0, 1), (1, 2), (2, 3), (0, 3)]
    assert found["tensors"] == [["2×8", "float32", 64]]


def test_colours_are_the_same_in_python_and_on_the_page() -> None:
    script = (ASSETS / "kit" / "rows.js").read_text(encoding="utf-8")
    block = re.search(r"CATEGORY_COLORS = \{(.*?)\}", script, re.DOTALL)
    assert block is not None
    assert {name: int(number) for name, number in re.findall(r"(\w+): (\d)", block[1])} == dict(CATEGORY_COLORS)
    style = (ASSETS / "page.css").read_text(encoding="utf-8")
    for number in range(10):
        values = re.findall(rf"--c{number}: (#\w+);", style)
        assert set(values) == {LIGHT[f"c{number}"], DARK[f"c{number}"]}
