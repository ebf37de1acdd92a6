"""Reports: one file per format; the data are computed first, then rendered."""

from __future__ import annotations

# Importing a renderer registers it.
from torchgauge.report import (
    comprehensive,
    document,
    dot,
    fragment,
    jsonl,
    latex,
    markdown,
    modules_csv,
    ops_csv,
    page,
    parquet,
    svg,
    text,
    trace,
    weights_csv,
    weights_jsonl,
    weights_text,
    xml,
)
from torchgauge.report.columns import COLUMNS, DEFAULT_COLUMNS
from torchgauge.report.dataframe import to_dataframe
from torchgauge.report.options import Options
from torchgauge.report.registry import (
    FORMATS,
    find_format,
    known_suffixes,
    render,
    render_bytes,
    render_pieces,
    renderer,
)
from torchgauge.report.saving import save, save_weights

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "FORMATS",
    "Options",
    "comprehensive",
    "document",
    "dot",
    "find_format",
    "fragment",
    "jsonl",
    "known_suffixes",
    "latex",
    "markdown",
    "modules_csv",
    "ops_csv",
    "page",
    "parquet",
    "render",
    "render_bytes",
    "render_pieces",
    "renderer",
    "save",
    "save_weights",
    "svg",
    "text",
    "to_dataframe",
    "trace",
    "weights_csv",
    "weights_jsonl",
    "weights_text",
    "xml",
]
