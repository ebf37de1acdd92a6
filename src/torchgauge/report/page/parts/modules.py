"""The modules as columns: the tree, the icicle and the table read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchgauge.facts import Node, View
from torchgauge.report.columns import format_shapes
from torchgauge.report.options import Options
from torchgauge.report.outline import tied_modules
from torchgauge.report.page.column_store import columns, shortened
from torchgauge.report.page.figures import bytes_moved
from torchgauge.report.page.parts.ops import RANGE
from torchgauge.report.page.payload import part

_AS_THEY_ARE = (
    "type", "calls", "params", "trainable_params", "param_bytes", "macs", "flops", "bytes_read", "bytes_written",
    "activation_bytes", "ops", "time_s", "self_time_s", "energy_j", "estimated_energy_j",
)  # fmt: skip


@part("modules")
def modules(view: View, options: Options) -> dict[str, Any]:
    """`name` is the path beyond the parent's, `parent` its row: whole paths would be most of a large page."""
    rows, tied = view.modules, tied_modules(view.capture)
    places = list(_places(view.tree))
    values: dict[str, list[Any]] = {
        "name": [name for name, _ in places],
        "parent": [parent for _, parent in places],
        **{key: [row[key] for row in rows] for key in _AS_THEY_ARE},
        **{key: shortened(row[key] for row in rows) for key in RANGE},
        "bytes_moved": [bytes_moved(row) for row in rows],
        "aliases": [", ".join(row.aliases) or None for row in rows],
        "tied_to": [tied.get(row.path) for row in rows],
        "input_shapes": [format_shapes(row.input_shapes) if row.input_shapes else None for row in rows],
        "output_shapes": [format_shapes(row.output_shapes) if row.output_shapes else None for row in rows],
    }
    return columns(len(rows), values)


def _places(root: Node) -> Iterator[tuple[str, int | None]]:
    """The name below the parent and the parent's row, preorder as the rows are."""
    waiting: list[tuple[Node, str, int | None]] = [(root, "", None)]
    row = 0
    while waiting:
        node, above, parent = waiting.pop()
        yield node.path.removeprefix(f"{above}.") if above else node.path, parent
        waiting += [(child, node.path, row) for child in reversed(node.children)]
        row += 1
