"""Which data flow from which op to which, the places of modules in the run, and what is drawn."""

from __future__ import annotations

import dataclasses

from tests.report.graph_sample import Line, X, graph_view, looping_view, module, residual_view, shrinking_view
from tests.report.sample import sample_view
from tests.report.stored_sample import stored_view
from torchgauge.facts import View
from torchgauge.report.graph import (
    INPUT,
    MAX_CALLS,
    MORE,
    OUTPUT,
    READABLE_NODES,
    Graph,
    Labels,
    Link,
    Opening,
    Runs,
    Scene,
    build_graph,
    build_scene,
    opening,
    readable,
    to_depth,
    trace_flow,
)


def scene_of(view: View, depth: int | None = None) -> tuple[Graph, Labels, Scene]:
    graph = build_graph(view)
    runs = Runs(graph)
    return graph, Labels(graph, runs), build_scene(graph, runs, opening(graph, runs, depth))


def connections(view: View, depth: int | None = None) -> list[str]:
    _, words, scene = scene_of(view, depth)
    return [f"{words.label(edge.source).title} -> {words.label(edge.target).title}" for edge in scene.edges]


def test_a_view_is_part_of_the_way_between_two_ops() -> None:
    view = graph_view([], [("relu", "", ("x",)), ("view", "", (0,)), ("view", "", (1,)), ("relu", "", (2,))])
    flow = trace_flow(view.capture)
    assert [op.op for op in flow.steps] == ["aten::relu", "aten::relu"]
    assert flow.links == [Link(0, 1, X)]


def inputs_of(view: View) -> list[tuple[str, tuple[int, ...]]]:
    return [(given.name, given.readers) for given in trace_flow(view.capture).inputs]


def test_parameters_and_constants_are_not_inputs_of_the_model() -> None:
    view = graph_view([module("fc", "Linear")], [("addmm", "fc", ("x",)), ("add", "", (0, None))])
    assert inputs_of(view) == [("x", (0,))]


def test_a_view_of_an_input_comes_from_the_input() -> None:
    """Some views count as the writers of what they show, as `_unsafe_view`."""
    assert inputs_of(graph_view([], [("view", "", ("x",)), ("relu", "", (0,))])) == [("x", (0,))]


def test_an_op_that_reads_a_view_of_an_input_reads_the_input() -> None:
    """Records name the op that wrote a tensor: of a view of an input that is none."""
    assert inputs_of(graph_view([], [("view", "", ("x",)), ("relu", "", ("x",))])) == [("x", (0,))]


def test_inputs_that_are_alike_are_distinguished() -> None:
    lines: list[Line] = [("relu", "", ("a",)), ("add", "", ("b", 0)), ("add", "", ("b", 1))]
    assert inputs_of(graph_view([], lines, inputs=("a", "b"))) == [("a", (0,)), ("b", (1, 2))]
    assert connections(graph_view([], lines, inputs=("a", "b"))) == [
        "relu -> add", "add -> add", "a -> relu", "b -> add", "b -> add", "add -> output",
    ]  # fmt: skip


def test_a_tensor_that_is_given_twice_is_one_input_with_both_names() -> None:
    capture = graph_view([], [("add", "", ("a", "a"))], inputs=("a",)).capture
    again = dataclasses.replace(capture.inputs[0], name="b")
    view = View(dataclasses.replace(capture, inputs=(*capture.inputs, again)))
    assert inputs_of(view) == [("a, b", (0, 0))]


def test_a_single_op_has_a_flow_without_links() -> None:
    flow = trace_flow(graph_view([], [("relu", "", ("x",))]).capture)
    assert (flow.links, flow.is_known) == ([], True)


def test_an_input_that_nothing_reads_is_not_drawn() -> None:
    assert inputs_of(graph_view([], [("relu", "", ("a",))], inputs=("a", "b"))) == [("a", (0,))]


def test_inputs_with_unknown_readers_are_not_drawn() -> None:
    capture = residual_view().capture
    older = dataclasses.replace(capture, inputs=(dataclasses.replace(capture.inputs[0], readers=None),))
    assert inputs_of(View(older)) == []
    assert trace_flow(older).links == trace_flow(capture).links


def test_the_model_returns_unread_results_of_the_same_size() -> None:
    view = graph_view([], [("relu", "", ("x",)), ("relu", "", (0,)), ("relu", "", (0,))])
    assert [step for step, _ in trace_flow(view.capture).outputs] == [1, 2]


def test_the_model_returns_what_was_recorded_as_its_result() -> None:
    capture = graph_view([], [("relu", "", ("x",)), ("relu", "", (0,)), ("view", "", (0,))]).capture
    # A tensor that another op reads may be returned too, also through a view; one that is not read need not be.
    flow = trace_flow(dataclasses.replace(capture, run=dataclasses.replace(capture.run, results=(2,))))
    assert flow.outputs == [(0, X)]


def test_memory_without_readers_is_not_drawn() -> None:
    view = graph_view([], [("empty", "", ()), ("empty", "", ()), ("add", "", ("x", 1))])
    assert [op.index for op in trace_flow(view.capture).steps] == [1, 2]


def test_only_the_forward_pass_is_drawn() -> None:
    capture = residual_view().capture
    later = dataclasses.replace(capture.ops[0], index=len(capture.ops), phase="backward", producers=(1,))
    flow = trace_flow(dataclasses.replace(capture, ops=(*capture.ops, later)))
    assert len(flow.steps) == len(capture.ops)


def test_a_module_called_twice_in_a_block_has_two_places_in_it() -> None:
    lines: list[Line] = [("relu", "act", ("x",)), ("addmm", "fc", (0,)), ("relu", "act", (1,))]
    view = graph_view([module("act", "ReLU", calls=2), module("fc", "Linear")], lines)
    assert connections(view) == ["act -> fc", "fc -> act", "x -> act", "act -> output"]
    _, words, scene = scene_of(view)
    assert [words.label(item).cost for item in scene.root.inside[1:4]] == [
        "call 1 of 2",
        "1.02 k MACs",
        "call 2 of 2",
    ]


def test_a_module_that_is_called_again_shows_what_it_makes_there() -> None:
    _, words, scene = scene_of(shrinking_view())
    assert [words.made(item) for item in scene.root.inside] == ["2×8", "2×8", "2×8", "1×4", ""]


def test_a_list_of_modules_is_never_called_and_has_no_place() -> None:
    graph = build_graph(residual_view())
    names = [graph.places[number].name for number in graph.places[0].children]
    assert names == ["relu", "blocks.0", "blocks.1", "blocks.2", "head"]


def test_every_step_is_in_exactly_one_place() -> None:
    for view in (residual_view(), looping_view(), sample_view()):
        graph = build_graph(view)
        found = [step for place in graph.places for step in place.steps]
        assert sorted(found) == list(range(len(graph.flow.steps)))
        assert [graph.place_of[step] for step in found] == [n for n, p in enumerate(graph.places) for _ in p.steps]


def test_equal_blocks_in_a_row_are_one_and_the_way_between_them_is_not_drawn() -> None:
    assert connections(residual_view(), depth=1) == [
        "relu -> blocks.0–2 ×3",
        "blocks.0–2 ×3 -> head",
        "x -> relu",
        "head -> output",
    ]


def test_inside_a_run_one_block_is_drawn_with_its_residual_connection() -> None:
    assert connections(residual_view(), depth=3) == [
        "relu -> fc",
        "fc -> act",
        "act -> add",
        "relu -> add",
        "add -> head",
        "x -> relu",
        "head -> output",
    ]


def test_an_op_between_two_equal_blocks_parts_them() -> None:
    lines: list[Line] = [("addmm", "0", ("x",)), ("relu", "", (0,)), ("addmm", "1", (1,))]
    view = graph_view([module("0", "Linear"), module("1", "Linear")], lines)
    assert Runs(build_graph(view)).members == {}


def test_blocks_with_other_ops_do_not_repeat() -> None:
    lines: list[Line] = [("addmm", "0", ("x",)), ("addmm", "1", (0,)), ("relu", "2", (1,))]
    view = graph_view([module("0", "Linear"), module("1", "Linear"), module("2", "Linear")], lines)
    assert Runs(build_graph(view)).members == {1: [1, 2]}


def test_a_loop_is_drawn_once_and_its_data_go_back() -> None:
    view = looping_view(MAX_CALLS + 1)
    graph, words, scene = scene_of(view, depth=2)
    assert [words.label(item).title for item in scene.root.inside] == ["x", "cell", "output"]
    assert connections(view, depth=2) == ["fc -> add", "add -> fc", "x -> fc", "add -> output"]
    cell = graph.places[1]
    assert (cell.turns, cell.period, len(cell.steps)) == (MAX_CALLS + 1, 1, MAX_CALLS + 1)


def test_bytes_of_an_edge_count_a_tensor_once_however_often_it_is_read() -> None:
    view = graph_view([module("a", "A"), module("b", "B")], [("relu", "a", ("x",)), ("add", "b", (0, 0))])
    _, _, scene = scene_of(view)
    assert [edge.nbytes for edge in scene.edges] == [X.nbytes] * 3


def test_without_producers_there_are_steps_but_no_flow() -> None:
    _, words, scene = scene_of(sample_view())
    assert scene.edges == []
    assert not trace_flow(sample_view().capture).is_known
    titles = [words.label(item).title for item in scene.root.inside]
    assert titles[:3] == ["stem", "blocks.0–11 ×12", "shared"]
    assert {item.kind for item in scene.root.inside}.isdisjoint({INPUT, OUTPUT})


def test_without_code_the_hierarchy_comes_from_the_weight_names() -> None:
    _, words, scene = scene_of(stored_view())
    assert scene.edges == []
    assert any(words.label(item).cost.endswith("params") for item in scene.root.inside)


def test_the_initial_view_is_readable() -> None:
    graph = build_graph(residual_view())
    assert readable(graph, Runs(graph)).places == {0, 2}
    many = [module(f"m{'ab'[n % 2]}{n}", "Linear") for n in range(200)]
    flat = graph_view(many, [("addmm", record.path, ("x",)) for record in many])
    _, _, scene = scene_of(flat)
    more = scene.root.inside[-2]
    assert (len(scene.root.inside), more.kind, more.count) == (READABLE_NODES + 3, MORE, 200 - READABLE_NODES)


def test_a_depth_opens_modules_to_it_and_0_is_the_model_alone() -> None:
    graph = build_graph(residual_view())
    assert to_depth(graph, 0).places == frozenset()
    assert to_depth(graph, 1).places == {0}
    assert to_depth(graph, 9).places == {0, 2, 5, 8}


def test_omitted_nodes_keep_their_connections() -> None:
    graph = build_graph(residual_view())
    scene = build_scene(graph, Runs(graph), Opening(frozenset({0}), most=1))
    kinds = [(edge.source.kind, edge.target.kind) for edge in scene.edges]
    assert kinds == [("place", MORE), (INPUT, "place"), (MORE, OUTPUT)]
