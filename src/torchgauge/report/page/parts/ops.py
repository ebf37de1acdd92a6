"""The op calls as columns."""

from __future__ import annotations

from torchgauge.facts import View
from torchgauge.facts.figures import OPS, Use, range_keys, shown_in
from torchgauge.report.options import Options
from torchgauge.report.page.payload import columns, part, shortened, value_of
from torchgauge.units import format_shape

SHOWN_SHAPES = 3  # of one op; the others are counted


@part("ops")
def ops(view: View, options: Options) -> dict[str, object] | None:
    rows = view.ops
    if not rows:
        return None
    # The rows of the modules; their paths where one has no row, as a stripped wrapper has none.
    places = {row.path: place for place, row in enumerate(view.modules)}
    paths = [row.module for row in view.ops]
    if all(path in places for path in paths):
        modules = {"module_row": [places[path] for path in paths]}
    else:
        modules = {"module": paths}
    return columns(
        len(rows),
        {
            **{figure.key: [value_of(row, figure) for row in rows] for figure in shown_in(Use.OP_PAGE, OPS)},
            **{key: shortened(row[key] for row in rows) for key in range_keys(OPS)},
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
