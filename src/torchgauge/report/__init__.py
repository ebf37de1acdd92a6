"""Reports: one file per format; the data are computed first, then rendered."""

from __future__ import annotations

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
    "find_format",
    "known_suffixes",
    "render",
    "render_bytes",
    "render_pieces",
    "renderer",
    "save",
    "save_weights",
    "to_dataframe",
]
