"""The HTML page: one self-contained file that works offline."""

from __future__ import annotations

# Importing a file registers its parts.
from torchgauge.report.page import advice, cost, measured, memory, method, overview, rows, weights
from torchgauge.report.page.assemble import assemble
from torchgauge.report.page.memory import live_at_peak
from torchgauge.report.page.payload import PARTS, build_payload, columns, encode, part, plain

# The files in assets/sections that draw the page, in order.
SECTIONS = (
    "overview", "advice", "icicle", "modules", "graph_places", "graph_scene", "graph_layers", "graph_ways",
    "graph_columns", "graph_layout", "graph_words", "graph_picture", "graph_details", "graph_search", "graph",
    "distribution", "memory", "system", "time", "sweeps", "surroundings", "energy", "roofline", "ops", "weight_map",
    "weight_tensor", "weight_curves", "weights", "more", "method", "environment",
)  # fmt: skip

__all__ = [
    "PARTS", "SECTIONS", "advice", "assemble", "build_payload", "columns", "cost", "encode", "live_at_peak",
    "measured", "memory", "method", "overview", "part", "plain", "rows", "weights",
]  # fmt: skip
