"""Reports: one file per format; the data are computed first, then rendered."""

from __future__ import annotations

# Importing a renderer registers it.
from torchgauge.report import (
    document,
    fragment,
    modules_csv,
    ops_csv,
    text,
    trace,
    weights_csv,
    weights_jsonl,
    weights_text,
)
from torchgauge.report.columns import COLUMNS, DEFAULT_COLUMNS
from torchgauge.report.dataframe import to_dataframe
from torchgauge.report.options import Options
from torchgauge.report.registry import FORMATS, find_format, known_suffixes, render, renderer
from torchgauge.report.saving import save, save_weights

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "FORMATS",
    "Options",
    "document",
    "find_format",
    "fragment",
    "known_suffixes",
    "modules_csv",
    "ops_csv",
    "render",
    "renderer",
    "save",
    "save_weights",
    "text",
    "to_dataframe",
    "trace",
    "weights_csv",
    "weights_jsonl",
    "weights_text",
]
