"""Reports: one file per format; the data are computed first, then rendered.

The names below load on first use: the help needs the suffixes of files alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.report.bars import bar, spark
    from torchgauge.report.escape import inert_cell, json_value
    from torchgauge.report.fit import FitReport
    from torchgauge.report.folding import Block, fold
    from torchgauge.report.forecast import ForecastReport
    from torchgauge.report.layout import (
        MIN_TEXT_WIDTH,
        Heading,
        Line,
        Span,
        cell_width,
        lay_out,
        line_width,
        plain,
        shorten,
        shorten_line,
        terminal_width,
        wrap,
        write_lines,
    )
    from torchgauge.report.llm import LlmReport
    from torchgauge.report.model import Topic
    from torchgauge.report.options import COLUMNS, DEFAULT_COLUMNS, MEASURED_COLUMNS, Options, columns_of
    from torchgauge.report.predictions import PredictionReport
    from torchgauge.report.ranking import (
        BY_ENERGY,
        BY_FLOPS,
        BY_TIME,
        join_paths,
        path_pattern,
        rate,
        top_modules,
        top_ops,
    )
    from torchgauge.report.registry import (
        ANALYSIS,
        FORMATS,
        OTHERS,
        SCAN,
        find_format,
        render,
        render_bytes,
        render_pieces,
        renderer,
        suffixes_of,
    )
    from torchgauge.report.saving import save, save_weights, write_whole
    from torchgauge.report.table_rows import flat_rows, to_dataframe
    from torchgauge.report.weight_statistics import (
        advice,
        by_operation,
        easiest_to_prune,
        examined,
        hardest,
        heat_maps,
        places,
        shade,
        sqnr_db,
        structured,
        structured_in_all,
    )
    from torchgauge.units import visible

__all__ = [
    "ANALYSIS", "BY_ENERGY", "BY_FLOPS", "BY_TIME", "COLUMNS", "DEFAULT_COLUMNS", "FORMATS", "MEASURED_COLUMNS",
    "MIN_TEXT_WIDTH", "OTHERS", "SCAN", "Block", "FitReport", "ForecastReport", "Heading", "Line", "LlmReport",
    "Options", "PredictionReport", "Span", "Topic", "advice", "bar", "by_operation",
    "cell_width", "columns_of", "easiest_to_prune", "examined", "find_format", "flat_rows", "fold", "hardest",
    "heat_maps", "inert_cell", "join_paths", "json_value", "lay_out", "line_width", "path_pattern", "places",
    "plain", "rate", "render", "render_bytes", "render_pieces", "renderer", "save", "save_weights", "shade",
    "shorten", "shorten_line", "spark", "sqnr_db", "structured", "structured_in_all", "suffixes_of", "terminal_width",
    "to_dataframe", "top_modules", "top_ops", "visible", "wrap", "write_lines", "write_whole",
]  # fmt: skip

__getattr__ = lazy_names(__name__)
