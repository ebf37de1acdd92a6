"""Modules and op calls as columns, which the tree, the icicle and the tables read; and the graph between them as
numbers: places, steps, links. The page decides which modules are open, and lays the graph out."""

from __future__ import annotations

from typing import Any

from torchgauge.facts import Node, TensorSpec, View
from torchgauge.facts.figures import MODULES, OPS, Use, range_keys, shown_in
from torchgauge.report.content.modules import tied_modules
from torchgauge.report.graph.places import Runs, build_graph
from torchgauge.report.graph.scene import MAX_ITEMS_OF_MODULE, READABLE_NODES, folded_items, readable
from torchgauge.report.options import Options, format_shapes
from torchgauge.report.page.payload import columns, encode, part, shortened, value_of
from torchgauge.units import format_shape


@part("modules")
def modules(view: View, options: Options) -> dict[str, object]:
    """`name` is the path beyond the parent's, `parent` its row: whole paths would be most of a large page."""
    rows, tied = view.modules, tied_modules(view.capture)
    # The name below the parent and the parent's row, preorder as the rows are.
    places: list[tuple[str, int | None]] = []
    waiting: list[tuple[Node, str, int | None]] = [(view.tree, "", None)]
    while waiting:
        node, above, parent = waiting.pop()
        waiting += [(child, node.path, len(places)) for child in reversed(node.children)]
        places.append((node.path.removeprefix(f"{above}.") if above else node.path, parent))
    values: dict[str, list[object]] = {
        "name": [name for name, _ in places],
        "parent": [parent for _, parent in places],
        **{figure.key: [value_of(row, figure) for row in rows] for figure in shown_in(Use.MODULE_PAGE, MODULES)},
        **{key: [shortened(row[key], _RANGE_DIGITS) for row in rows] for key in range_keys(MODULES)},
        "aliases": [", ".join(row.aliases) or None for row in rows],
        "tied_to": [tied.get(row.path) for row in rows],
        "input_shapes": [format_shapes(row.input_shapes) if row.input_shapes else None for row in rows],
        "output_shapes": [format_shapes(row.output_shapes) if row.output_shapes else None for row in rows],
    }
    return columns(len(rows), values)


SHOWN_SHAPES = 3  # of one op; the others are counted
_RANGE_DIGITS = 5  # of the ends of a range: only a tooltip shows them, with three digits


@part("ops")
def ops(view: View, options: Options) -> dict[str, object] | None:
    rows = view.ops
    if not rows:
        return None
    # The rows of the modules; if one has none, as a stripped wrapper has, the paths of all.
    places = {row.path: place for place, row in enumerate(view.modules)}
    paths = [row.module for row in view.ops]
    if all(path in places for path in paths):
        modules: dict[str, list[Any]] = {"module_row": [places[path] for path in paths]}
    else:
        modules = {"module": paths}
    return columns(
        len(rows),
        {
            **{figure.key: [value_of(row, figure) for row in rows] for figure in shown_in(Use.OP_PAGE, OPS)},
            **{key: [shortened(row[key], _RANGE_DIGITS) for row in rows] for key in range_keys(OPS)},
            "input_shapes": [shapes_text(row.input_shapes) for row in rows],
            "output_shapes": [shapes_text(row.output_shapes) for row in rows],
            **modules,
        },
    )


def shapes_text(shapes: list[list[int]]) -> str | None:
    """`1×64×56×56, 64×64×3×3`; a concatenation may have hundreds."""
    if not shapes:
        return None
    more = f", +{len(shapes) - SHOWN_SHAPES}" if len(shapes) > SHOWN_SHAPES else ""
    return ", ".join(format_shape(shape) for shape in shapes[:SHOWN_SHAPES]) + more


@part("graph")
def graph(view: View, options: Options) -> dict[str, object] | None:
    """Ops are rows of the part `ops`, modules rows of `modules`; lists of equal length belong together."""
    found = build_graph(view)
    if len(found.places) < 2 and not found.flow.steps:
        return None
    runs, tensors = Runs(found), _Tensors()
    opening = readable(found, runs)
    flow = found.flow
    rows = {op.index: row for row, op in enumerate(view.capture.ops)}
    # `period` is left out where all steps of a place are drawn, as outside of loops.
    return {
        "places": {
            "row": [place.row for place in found.places],
            "parent": [place.parent for place in found.places],
            "call": encode([place.call for place in found.places]),
            "calls": encode([place.calls for place in found.places]),
            "turns": encode([place.turns for place in found.places]),
            "period": {n: place.period for n, place in enumerate(found.places) if place.period < len(place.steps)},
        },
        "steps": {"op": [rows[op.index] for op in flow.steps], "place": found.place_of},
        "links": {
            "source": [link.source for link in flow.links],
            # Most data are read soon: differences are short.
            "ahead": [link.target - link.source for link in flow.links],
            "tensor": [tensors.number(link.spec) for link in flow.links],
        },
        "inputs": [[i.name, tensors.number(i.spec), list(i.readers)] for i in flow.inputs if i.readers],
        "outputs": [[step, tensors.number(spec)] for step, spec in flow.outputs],
        "tensors": tensors.rows,
        "runs": [[first, len(members), runs.name(first)] for first, members in runs.members.items()],
        "open": sorted(opening.places),
        "shown": READABLE_NODES if len(folded_items(found, runs, 0)) > opening.most else MAX_ITEMS_OF_MODULE,
        "most": MAX_ITEMS_OF_MODULE,
        "phases": len({op.phase for op in view.capture.ops}),
    }


class _Tensors:
    """Distinct tensors: shape as text, type, bytes."""

    def __init__(self) -> None:
        self.rows: list[list[object]] = []
        self.numbers: dict[TensorSpec, int] = {}

    def number(self, spec: TensorSpec) -> int:
        if spec not in self.numbers:
            self.numbers[spec] = len(self.rows)
            self.rows.append([format_shape(spec.shape), spec.dtype, spec.distinct_bytes])
        return self.numbers[spec]
