"""The map of the modules: what it shows, how it zooms, what it is sized and coloured by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import torchgauge as tg
from tests.page.conftest import OpenPage, wait_until
from tests.page.large_sample import LARGE_BLOCKS
from tests.report.energy_sample import estimated_energy
from tests.report.sample import sample_view
from tests.report.weights_sample import weights_view
from torchgauge.units import format_bytes, format_count

if TYPE_CHECKING:
    from playwright.sync_api import Page


def open_map(page: Page) -> None:
    page.evaluate("tg.go('map')")
    page.locator("#map canvas").scroll_into_view_if_needed()


def caption(page: Page) -> str:
    return page.locator("#map figcaption").inner_text()


def crumbs(page: Page) -> str:
    return page.locator("#map .crumbs").inner_text()


def select(page: Page, label: str, value: str) -> None:
    page.locator("#map .choice", has_text=label).locator("select").select_option(value)


def pixels(page: Page) -> str:
    return str(page.locator("#map canvas").evaluate("canvas => canvas.toDataURL()"))


# A root of 10 with children of 6, 3 and 1; the first has children of 4 and 2.
TREE = "{children: (row) => ({0: [1, 2, 3], 1: [4, 5]})[row] ?? [], value: (row) => [10, 6, 3, 1, 4, 2][row]}"


def test_the_heights_of_an_icicle_are_the_shares_of_the_figure(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    cells = page.evaluate(f"tg.partition.icicle({TREE}, 0, {{widths: [50, 100, 100], height: 200}})")
    places = {cell["row"]: (cell["x"], cell["y"], cell["w"], cell["h"]) for cell in cells}
    assert places == {
        0: (0, 0, 50, 200),
        1: (50, 0, 100, 120),
        2: (50, 120, 100, 60),
        3: (50, 180, 100, 20),
        4: (150, 0, 100, 80),
        5: (150, 80, 100, 40),
    }


def test_the_areas_of_a_treemap_are_in_proportion_and_do_not_overlap(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    cells = page.evaluate(f"tg.partition.treemap({TREE}, 0, {{width: 400, height: 300}})")
    boxes = {cell["row"]: cell for cell in cells}
    areas = {row: box["w"] * box["h"] for row, box in boxes.items()}
    assert areas[1] / areas[3] == pytest.approx(6)
    assert areas[2] / areas[3] == pytest.approx(3)
    for one, other in ((1, 2), (2, 3), (1, 3)):
        first, second = boxes[one], boxes[other]
        apart = [
            first[low] + first[size] <= second[low] + 1e-6 or second[low] + second[size] <= first[low] + 1e-6
            for low, size in (("x", "w"), ("y", "h"))
        ]
        assert any(apart)


def test_siblings_that_share_a_tensor_still_fit_their_parent(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    tree = "{children: (row) => (row === 0 ? [1, 2] : []), value: () => 5}"
    cells = page.evaluate(f"tg.partition.icicle({tree}, 0, {{widths: [50, 50], height: 100}})")
    assert sorted((cell["y"], cell["h"]) for cell in cells[1:]) == [(0, 50), (50, 50)]


def test_the_map_zooms_by_keys_and_back(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    open_map(page)
    assert crumbs(page) == "Sample"
    page.focus("#map canvas")
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert crumbs(page).split()[::2] == ["Sample", "blocks"]
    assert page.evaluate("tg.selection.get()") == "blocks"
    page.keyboard.press("Backspace")
    assert crumbs(page) == "Sample"


def test_the_map_zooms_by_pointer_and_by_its_breadcrumb(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    open_map(page)
    page.locator("#map canvas").click(position={"x": 200, "y": 300})
    assert crumbs(page).split()[::2] == ["Sample", "blocks"]
    page.locator("#map .crumbs button", has_text="Sample").click()
    assert crumbs(page) == "Sample"
    page.locator("#map canvas").click(position={"x": 200, "y": 300})
    page.locator("#map canvas").click(position={"x": 10, "y": 300})
    assert crumbs(page) == "Sample"


def test_any_figure_can_size_and_colour_the_map(open_page: OpenPage) -> None:
    view = sample_view()
    page = open_page(view)
    open_map(page)
    assert f"Size: MACs, {format_count(view.totals.macs)} in Sample." in caption(page)
    first = pixels(page)
    select(page, "Size", "param_bytes")
    assert f"Size: Parameter memory, {format_bytes(view.totals.param_bytes)} in Sample." in caption(page)
    second = pixels(page)
    select(page, "Colour", "flops")
    assert format_count(view.totals.flops) in page.locator("#map .legend").inner_text()
    third = pixels(page)
    page.click("#map >> text=Treemap")
    assert len({first, second, third, pixels(page)}) == 4


def test_an_estimate_is_hatched_and_called_one(open_page: OpenPage) -> None:
    page = open_page(estimated_energy())
    open_map(page)
    assert "estimated" not in caption(page)
    select(page, "Size", "estimated_energy_j")
    assert "Energy (estimated), ≈ " in caption(page)
    assert "Hatched: estimated, not measured." in caption(page)
    card = page.locator(".card", has_text="Energy")
    assert "estimated" in card.inner_text()
    assert "≈" in card.inner_text()


def test_the_map_is_painted_again_in_the_colours_of_the_other_theme(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    open_map(page)
    before = pixels(page)
    page.click("#theme")
    assert pixels(page) != before


def test_thousands_of_siblings_are_shown_as_groups(open_page: OpenPage, large_page: Path) -> None:
    page = open_page(large_page)
    open_map(page)
    shown = page.evaluate(
        "(() => { const tree = tg.groupedTree(tg.modules); return tree.children(0).map(tree.name); })()"
    )
    assert len(shown) == 40
    assert shown[0] == "0 … 124"
    assert shown[-1] == "4875 … 4999"
    sums = "(() => { const t = tg.groupedTree(tg.modules); return t.children(0).map((n) => t.value(n, 'params')); })()"
    assert sum(page.evaluate(sums)) == sum(2 * (block + 1) for block in range(LARGE_BLOCKS))


class Blocks(nn.Module):
    """More equal blocks than a map can name, and one that is not equal."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(80))
        self.layers.append(nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_eighty_equal_blocks_are_one_with_the_children_of_all(open_page: OpenPage) -> None:
    found = tg.analyze(Blocks(), (1, 8), advice=False)
    page = open_page(found)
    open_map(page)
    tree = page.evaluate("""(() => {
      const t = tg.groupedTree(tg.modules);
      const shown = (node) => [t.name(node), t.type(node), t.value(node, "macs"), t.children(node).map(shown)];
      return shown(t.children(0)[0]);
    })()""")

    blocks, last = tree[3]
    assert (blocks[0], blocks[2]) == ("0–79 ×80", 80 * 128)
    assert [(name, kind, macs) for name, kind, macs, _ in blocks[3]] == [
        ("0 ×80", "Linear", 80 * 64),
        ("1 ×80", "ReLU", 0),
        ("2 ×80", "Linear", 80 * 64),
    ]
    assert last[0] == "80"
    assert tree[2] == found.totals.macs


def test_the_browsers_search_finds_a_module_that_is_not_drawn(open_page: OpenPage) -> None:
    page = open_page(tg.analyze(Blocks(), (1, 8), advice=False), is_drawn=False)
    path = "layers.77.2"
    place = page.locator(".findable div", has_text=path).first
    assert place.get_attribute("hidden") == "until-found"
    assert page.locator("#modules .grid-row", has_text="77").count() == 0

    place.dispatch_event("beforematch", {"bubbles": True})
    wait_until(page, "() => document.querySelector('#modules .is-selected') !== null")
    assert page.evaluate("tg.selection.get()") == path


def test_the_map_of_a_file_without_code_has_its_parameters(open_page: OpenPage) -> None:
    view = weights_view()
    page = open_page(view)
    open_map(page)
    assert f"Size: Parameters, {format_count(view.totals.params)}" in caption(page)


def test_a_module_that_computes_itself_has_the_colour_of_its_type(open_page: OpenPage) -> None:
    """Experts whose only child is an activation without MACs."""
    page = open_page(sample_view())
    tree = "{children: (row) => ({0: [1], 1: [2]})[row] ?? [], type: (row) => ['Model', 'Experts', 'SiLU'][row]}"
    cells = "[{row: 0, hidden: false}, {row: 1, hidden: true}]"
    legend = f"tg.fills.byType({tree}, {cells}, (row) => [10, 10, 0][row]).legend.textContent"
    assert page.evaluate(legend) == "Experts"


def test_a_module_without_the_figure_says_so(open_page: OpenPage) -> None:
    page = open_page(sample_view())
    open_map(page)
    page.focus("#map canvas")
    select(page, "Size", "params")
    page.locator("#map canvas").focus()
    for key in ("ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert crumbs(page).split()[::2] == ["Sample", "stem"]
    page.evaluate("tg.modules.derive('params', tg.modules.column('params').map(() => 0))")
    select(page, "Size", "params")
    assert caption(page) == "Nothing in stem has Parameters."
