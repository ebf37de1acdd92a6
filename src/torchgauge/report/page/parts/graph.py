"""The computation graph as numbers: places, steps, links. The page decides what is open and lays it out."""

from __future__ import annotations

from torchgauge.facts import TensorSpec, View
from torchgauge.report.graph.places import Runs, build_graph
from torchgauge.report.graph.scene import MOST_INSIDE, READABLE_NODES, folded_items, readable
from torchgauge.report.options import Options
from torchgauge.report.page.payload import encode, part
from torchgauge.units import format_shape


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
        "shown": READABLE_NODES if len(folded_items(found, runs, 0)) > opening.most else MOST_INSIDE,
        "most": MOST_INSIDE,
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
