"""Reports: one file per format; the data are computed first, then rendered.

The names below load on first use: the help needs the suffixes of files alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
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

_HOMES = {
    "columns": ("COLUMNS", "DEFAULT_COLUMNS"),
    "dataframe": ("to_dataframe",),
    "options": ("Options",),
    "registry": (
        "FORMATS",
        "find_format",
        "known_suffixes",
        "render",
        "render_bytes",
        "render_pieces",
        "renderer",
    ),
    "saving": ("save", "save_weights"),
}
__getattr__ = lazy_names(__name__, _HOMES)
