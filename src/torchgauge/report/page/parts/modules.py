"""The modules as columns: the tree, the icicle and the table read them."""

from __future__ import annotations

from torchgauge.facts import Node, View
from torchgauge.facts.figures import MODULES, Use, range_keys, shown_in
from torchgauge.report.content.modules import tied_modules
from torchgauge.report.options import Options, format_shapes
from torchgauge.report.page.payload import columns, part, shortened, value_of


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
        **{key: shortened(row[key] for row in rows) for key in range_keys(MODULES)},
        "aliases": [", ".join(row.aliases) or None for row in rows],
        "tied_to": [tied.get(row.path) for row in rows],
        "input_shapes": [format_shapes(row.input_shapes) if row.input_shapes else None for row in rows],
        "output_shapes": [format_shapes(row.output_shapes) if row.output_shapes else None for row in rows],
    }
    return columns(len(rows), values)
