from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.page.large_sample import large_view
from tests.report.graph_sample import looping_view, residual_view
from tests.report.sample import HOSTILE, sample_view
from tests.report.stored_sample import stored_view
from tests.report.test_dot import SHOWN, hostile_view
from torchgauge.facts import View
from torchgauge.report import Options, render
from torchgauge.report.graph import wire_width

SVG = "{http://www.w3.org/2000/svg}"


def picture(view: View, depth: int | None = None) -> ElementTree.Element:
    return ElementTree.fromstring(render(view, "svg", Options(depth=depth)))


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


def of_class(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if element.get("class") == name]


def test_boxes_frames_and_ways_are_drawn() -> None:
    root = picture(residual_view(), 3)
    assert len(of_class(root, "frame")) == 1
    assert len(of_class(root, "node")) == 5
    assert len(of_class(root, "end")) == 2
    assert len(of_class(root, "head")) == 7
    assert {"fc", "Linear · 1.02 k MACs", "2×8", "blocks.0–2 ×3Block", "1.02 k MACs each"} <= set(texts(root))


def test_a_shape_is_written_on_the_side_where_no_wire_passes() -> None:
    root = picture(residual_view(), 3)
    # Beside `act` passes what enters the block, to its sum, on the right.
    sides = {float(text.get("y", "")): text.get("text-anchor") for text in of_class(root, "shape")}
    assert [anchor for _, anchor in sorted(sides.items())] == [None, None, None, "end", None, None]


def test_everything_lies_on_the_paper() -> None:
    root = picture(residual_view(), 3)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for rect in [*of_class(root, "node"), *of_class(root, "frame")]:
        x, y, w, h = (float(rect.get(key, 0)) for key in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + w <= width
        assert y + h <= height


def test_edges_that_go_back_are_dashed() -> None:
    assert of_class(picture(looping_view(20), 2), "wire back")
    assert not of_class(picture(residual_view(), 3), "wire back")


def test_it_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    for view in (residual_view(), sample_view(), hostile_view()):
        root = picture(view)
        assert {element.tag for element in root.iter()} <= {
            f"{SVG}{name}" for name in ("svg", "title", "style", "g", "rect", "path", "text", "tspan")
        }
        keys = {key for element in root.iter() for key in element.keys()}  # noqa: SIM118
        assert not any(key.startswith("on") or "href" in key for key in keys)
        assert "url(" not in ElementTree.tostring(root, encoding="unicode")


def test_it_follows_the_theme_of_the_reader_but_prints_on_white() -> None:
    style = next(picture(residual_view()).iter(f"{SVG}style")).text or ""
    assert "@media screen and (prefers-color-scheme:dark)" in style


def test_a_hostile_name_is_text() -> None:
    assert SHOWN in texts(picture(hostile_view()))
    titles = [title.text or "" for title in picture(sample_view()).iter(f"{SVG}title")]
    assert HOSTILE.replace("\x1b", "\\x1b") in titles


def test_it_says_when_the_flow_is_not_known() -> None:
    unknown, known = (next(picture(view).iter(f"{SVG}title")).text or "" for view in (sample_view(), residual_view()))
    assert "was not recorded" in unknown
    assert "was not recorded" not in known


@pytest.mark.parametrize("depth", [None, 0, 1, 9])
def test_a_file_of_weights_is_drawn_without_ops(depth: int | None) -> None:
    assert texts(picture(stored_view(), depth))


def test_twenty_thousand_ops_stay_small() -> None:
    text = render(large_view(5000), "svg")
    assert len(text) < 60_000
    assert "… 4970 more" in text


@pytest.mark.parametrize(("nbytes", "width"), [(0, 1.0), (2**10, 1.0), (2**20, 3.0), (2**30, 5.0), (2**40, 5.0)])
def test_a_line_is_as_wide_as_what_flows_is_large(nbytes: int, width: float) -> None:
    assert wire_width(nbytes) == width
