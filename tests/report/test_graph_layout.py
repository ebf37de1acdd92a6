"""Positions: rows, crossings, columns, frames. Every picture must be readable, for any model."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.graph_sample import Line, graph_view, looping_view, module, residual_view
from tests.report.sample import sample_view
from torchgauge.facts import View
from torchgauge.report.graph import (
    INPUT,
    Arc,
    Area,
    Box,
    Item,
    Layers,
    Opening,
    Runs,
    build_graph,
    build_scene,
    crossings,
    fit_positions,
    lay_in_rows,
    opening,
    place_columns,
    place_scene,
    weighted_median,
)


def drawn(view: View, depth: int | None = None) -> Area:
    graph = build_graph(view)
    runs = Runs(graph)
    scene = build_scene(graph, runs, opening(graph, runs, depth))
    return place_scene(scene, lambda item: (80.0, 40.0))


def is_inside(inner: Item, outer: Item) -> bool:
    around = inner.around
    while around is not None and around is not outer:
        around = around.around
    return around is outer


def overlap(a: Box, b: Box) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


def views() -> list[View]:
    branches = [("relu", f"m{n}", ("x",)) for n in range(5)]
    joined = [("add", "", (0, 3)), ("add", "", (1, 2)), ("add", "", (4, 5, 6))]
    wide = graph_view([module(f"m{n}", f"T{n}") for n in range(5)], [*branches, *joined])
    return [residual_view(), looping_view(20), sample_view(), wide]


@pytest.mark.parametrize("depth", [0, 1, 2, 9])
@pytest.mark.parametrize("view", views(), ids=["residual", "loop", "no flow", "wide"])
def test_boxes_overlap_only_with_the_modules_around_them(view: View, depth: int) -> None:
    area = drawn(view, depth)
    for a, b in combinations(area.boxes, 2):
        if is_inside(a.item, b.item):
            a, b = b, a
        if is_inside(b.item, a.item):
            assert a.x <= b.x
            assert a.y <= b.y
            assert b.x + b.width <= a.x + a.width
            assert b.y + b.height <= a.y + a.height
        else:
            assert not overlap(a, b)


@pytest.mark.parametrize("view", views(), ids=["residual", "loop", "no flow", "wide"])
def test_every_edge_arrives_at_its_target_and_leaves_from_its_source(view: View) -> None:
    area = drawn(view, 9)
    edges = {id(edge): edge for wire in area.wires for edge in wire.edges}
    boxes = {box.item: box for box in area.boxes}
    for edge in edges.values():
        own = [wire for wire in area.wires if edge in wire.edges and not wire.goes_back]
        ends = [wire.points[-1] for wire in own if wire.arrives]
        back = [wire for wire in area.wires if edge in wire.edges and wire.goes_back]
        if not back:
            target = boxes[edge.target]
            assert (target.x + target.width / 2, target.y) in [pytest.approx(end) for end in ends]


def test_a_wire_bends_only_between_rows() -> None:
    for wire in drawn(residual_view(), 9).wires:
        turns = [(a, b) for a, b in pairwise(wire.points) if a[0] != b[0]]
        assert len(turns) <= 1


def test_the_line_of_a_residual_block_is_straight() -> None:
    area = drawn(residual_view(), 9)
    middles = {round(box.x + box.width / 2, 3) for box in area.boxes if not box.item.inside}
    assert len(middles) == 1


def test_each_vertex_is_below_what_it_reads() -> None:
    arcs = [Arc(0, 1, "a"), Arc(1, 2, "b"), Arc(0, 2, "a")]
    layers = lay_in_rows(3, 0, 0, arcs)
    assert [layers.rank_of[vertex] for vertex in range(3)] == [0, 1, 2]
    # The long way of the third arc passes the row of vertex 1.
    assert layers.rows[1] == [1, 3]
    assert arcs[2].way == [0, 3, 2]


def test_arcs_of_one_strand_share_their_way() -> None:
    arcs = [Arc(0, 1, "a"), Arc(1, 2, "b"), Arc(2, 3, "c"), Arc(0, 2, "a"), Arc(0, 3, "a")]
    lay_in_rows(4, 0, 0, arcs)
    assert arcs[3].way[1] == arcs[4].way[1]


def test_an_arc_back_up_is_laid_out_the_other_way_round() -> None:
    arcs = [Arc(0, 1, "a"), Arc(1, 2, "b"), Arc(2, 0, "c")]
    layers = lay_in_rows(3, 0, 0, arcs)
    assert [layers.rank_of[vertex] for vertex in range(3)] == [0, 1, 2]
    assert arcs[2].way[0] == 2
    assert arcs[2].way[-1] == 0


def test_a_constant_is_placed_right_above_its_reader() -> None:
    layers = lay_in_rows(4, 0, 0, [Arc(0, 2, "a"), Arc(2, 3, "b"), Arc(1, 3, "c")])
    assert layers.rank_of[1] == 1


def test_crossings_that_need_not_be_are_undone() -> None:
    arcs = [Arc(0, 5, "a"), Arc(1, 4, "b"), Arc(2, 3, "c")]
    layers = lay_in_rows(6, 0, 0, arcs)
    assert crossings(layers) == 0


def test_crossings_are_counted() -> None:
    arcs = [Arc(0, 2, "a"), Arc(0, 3, "a"), Arc(1, 2, "b"), Arc(1, 3, "b")]
    assert crossings(lay_in_rows(4, 0, 0, arcs)) == 1


def test_a_frame_that_is_entered_at_its_right_is_right_of_what_enters_it_at_its_left() -> None:
    # Both enter the one vertex below them: only the entry point decides which of them belongs to the left.
    arcs = [Arc(0, 2, "a", head_x=30.0), Arc(1, 2, "b", head_x=-30.0)]
    layers = lay_in_rows(3, 2, 0, arcs)
    assert (layers.rows[0], crossings(layers)) == ([1, 0], 0)


def skipping(pairs: int) -> tuple[Layers, list[float]]:
    """A chain of vertices of many widths; the first of them is read by the last, the second by the last but one, …"""
    count = 4 * pairs
    line = [Arc(n, n + 1, n) for n in range(count - 1)]
    skips = [Arc(n, count - 1 - n, n) for n in range(pairs)]
    widths = [60.0 + 37 * (n % 5) for n in range(count)]
    return lay_in_rows(count, 0, 0, [*line, *skips]), widths


@pytest.mark.parametrize("pairs", [1, 3, 6])
def test_parallel_long_edges_are_straight(pairs: int) -> None:
    layers, widths = skipping(pairs)
    x = place_columns(layers, widths, 26.0)
    columns = {x[bend] for row in layers.rows for bend in row if bend >= layers.count}
    assert len(columns) == pairs
    assert all(b - a >= 26.0 for a, b in pairwise(sorted(columns)))


def test_an_input_is_right_above_its_reader_next_to_a_tall_module() -> None:
    modules = [module("tall", "Tall"), *(module(f"tall.{n}", f"T{n}") for n in range(4))]
    lines: list[Line] = [("relu", "tall.0", ("a",)), *(("relu", f"tall.{n}", (n - 1,)) for n in range(1, 4))]
    area = drawn(graph_view(modules, [*lines, ("add", "", (3, "b"))], inputs=("a", "b")))
    inputs = [box for box in area.boxes if box.item.kind == INPUT]
    tall = next(box for box in area.boxes if box.item.inside and box.item.around is not None)
    assert inputs[1].y + inputs[1].height == tall.y + tall.height


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [([(1.0, 1.0), (5.0, 3.0)], 5.0), ([(1.0, 1.0), (5.0, 1.0)], 3.0), ([(1.0, 2.0), (2.0, 1.0), (9.0, 2.0)], 2.0)],
)
def test_a_weighted_median_is_where_the_weights_balance(wishes: list[tuple[float, float]], expected: float) -> None:
    assert weighted_median(wishes) == expected


def test_heavier_nodes_get_their_preferred_place() -> None:
    assert fit_positions([(0.0, 4.0), (0.0, 1.0)], [10.0]) == [0.0, 10.0]
    assert fit_positions([(0.0, 1.0), (0.0, 4.0)], [10.0]) == [-10.0, 0.0]


weights = st.sampled_from([0.1, 1.0, 1.5, 2.0, 4.0])
places = st.floats(-1e3, 1e3, allow_nan=False)


@given(st.lists(st.tuples(places, weights), min_size=1, max_size=12))
def test_positions_keep_their_order_and_their_room(wishes: list[tuple[float, float]]) -> None:
    room = [7.0] * (len(wishes) - 1)
    found = fit_positions(wishes, room)
    assert all(b - a >= 7.0 - 1e-6 for a, b in pairwise(found))


@given(st.data())
def test_no_vertices_of_a_row_overlap(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 9))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] != pair[1])
    arcs = [Arc(a, b, a) for a, b in data.draw(st.lists(pairs, max_size=14, unique=True))]
    widths = data.draw(st.lists(st.sampled_from([20.0, 80.0, 200.0]), min_size=count, max_size=count))
    layers = lay_in_rows(count, 0, 0, arcs)
    x = place_columns(layers, widths, 10.0)
    assert sorted(v for row in layers.rows for v in row if v < count) == list(range(count))
    for row in layers.rows:
        for a, b in pairwise(row):
            half = sum(widths[v] / 2 for v in (a, b) if v < count)
            assert x[b] - x[a] >= half + 10.0 - 1e-6


def test_a_module_left_out_of_a_long_list_is_one_box() -> None:
    many = [module(f"m{'ab'[n % 2]}{n}", "Linear") for n in range(500)]
    graph = build_graph(graph_view(many, [("addmm", record.path, ("x",)) for record in many]))
    scene = build_scene(graph, Runs(graph), Opening(frozenset({0}), 300))
    area = place_scene(scene, lambda item: (80.0, 40.0))
    assert len(area.boxes) == 1 + 300 + 3
