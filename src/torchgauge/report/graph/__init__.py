"""The computation graph: modules at their places in the run, the data between them, and their coordinates.

The page lays its graph out in the browser, since every click that opens or folds a module makes another graph; the SVG
file has no browser and needs the coordinates here. Both follow the same steps: layers, order, columns, coordinates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.report.graph.labels import CATEGORY_COLORS, DARK, LIGHT, NAME_WIDTH, Labels, wire_width
    from torchgauge.report.graph.layering import (
        Arc,
        Layers,
        crossings,
        fit_positions,
        lay_in_rows,
        place_columns,
        weighted_median,
    )
    from torchgauge.report.graph.placement import Area, Box, place_scene
    from torchgauge.report.graph.places import MOST_CALLS, Graph, Link, Runs, build_graph, trace_flow
    from torchgauge.report.graph.scene import (
        INPUT,
        MORE,
        OUTPUT,
        READABLE_LEVELS,
        READABLE_NODES,
        Item,
        Opening,
        Scene,
        build_scene,
        opening,
        readable,
        to_depth,
        walk,
    )

__all__ = [
    "CATEGORY_COLORS", "DARK", "INPUT", "LIGHT", "MORE", "MOST_CALLS", "NAME_WIDTH", "OUTPUT", "READABLE_LEVELS",
    "READABLE_NODES", "Arc", "Area", "Box", "Graph", "Item", "Labels", "Layers", "Link", "Opening", "Runs", "Scene",
    "build_graph", "build_scene", "crossings", "fit_positions", "lay_in_rows", "opening", "place_columns",
    "place_scene", "readable", "to_depth", "trace_flow", "walk", "weighted_median", "wire_width",
]  # fmt: skip

__getattr__ = lazy_names(__name__)
