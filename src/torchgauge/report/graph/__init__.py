"""The computation graph: modules at their places in the run, the data between them, and their coordinates.

The page lays its graph out in the browser, since every click that opens or folds a module makes another graph; the SVG
file has no browser and needs the coordinates here. Both follow the same steps: layers, order, columns, coordinates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.report.graph.labels import *
    from torchgauge.report.graph.layering import *
    from torchgauge.report.graph.placement import *
    from torchgauge.report.graph.places import *
    from torchgauge.report.graph.scene import *

_HOMES = {
    "layering": ("Arc", "Layers", "crossings", "lay_in_rows", "fit_positions", "place_columns", "weighted_median"),
    "places": ("MAX_CALLS", "Graph", "Link", "Runs", "build_graph", "trace_flow"),
    "placement": ("Area", "Box", "place_scene"),
    "scene": (
        "INPUT", "MORE", "OUTPUT", "READABLE_LEVELS", "READABLE_NODES", "Item", "Opening", "Scene", "build_scene",
        "opening", "readable", "to_depth", "walk",
    ),
    "labels": ("CATEGORY_COLORS", "DARK", "LIGHT", "NAME_WIDTH", "Labels", "wire_width"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
