"""Reports: one file per format; the data are computed first, then rendered.

The names below load on first use: the help needs the suffixes of files alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.report.bars import bar as bar
    from torchgauge.report.bars import narrow as narrow
    from torchgauge.report.bars import spark as spark
    from torchgauge.report.charts import log_ticks as log_ticks
    from torchgauge.report.escape import *
    from torchgauge.report.fit import *
    from torchgauge.report.folding import *
    from torchgauge.report.forecast import *
    from torchgauge.report.layout import *
    from torchgauge.report.llm import *
    from torchgauge.report.model import Topic as Topic
    from torchgauge.report.options import *
    from torchgauge.report.predictions import *
    from torchgauge.report.ranking import *
    from torchgauge.report.registry import *
    from torchgauge.report.saving import *
    from torchgauge.report.table_rows import *
    from torchgauge.report.weight_statistics import *
    from torchgauge.units import visible as visible

_HOMES = {
    "bars": ("bar", "narrow", "spark"),
    "charts": ("log_ticks",),
    "escape": ("inert_cell", "json_value", "visible"),
    "fit": ("FitReport",),
    "folding": ("FoldedBlock", "fold"),
    "forecast": ("ForecastReport",),
    "layout": (
        "MIN_TEXT_WIDTH", "Heading", "Line", "Span", "cell_width", "lay_out", "line_width", "plain", "shorten",
        "shorten_line", "terminal_width", "wrap", "write_lines",
    ),
    "llm": ("LlmReport",),
    "model": ("Topic",),
    "options": ("COLUMNS", "DEFAULT_COLUMNS", "MEASURED_COLUMNS", "Options", "columns_of"),
    "predictions": ("PredictionReport",),
    "ranking": ("BY_ENERGY", "BY_FLOPS", "BY_TIME", "join_paths", "path_pattern", "rate", "top_modules", "top_ops"),
    "registry": (
        "ANALYSIS", "FORMATS", "OTHERS", "SCAN", "find_format", "load_renderers", "render", "render_bytes",
        "render_pieces", "renderer", "suffixes_of",
    ),
    "saving": ("save", "save_weights", "write_whole"),
    "table_rows": ("flat_rows", "to_dataframe"),
    "weight_statistics": (
        "advice", "by_operation", "easiest_to_prune", "examined", "hardest", "heat_maps", "most_deviating", "places",
        "shade", "sqnr_db", "structured", "structured_in_all",
    ),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
