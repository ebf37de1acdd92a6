"""The sections of a report, which every format renders: one file per group.

A file here has `sections(view, options)`, which yields them. Nothing else lists them: a section's `Topic` places it in
the report, and a section without one comes last.

    def sections(view: View, options: Options) -> Iterator[Section]:
        yield Section("Names", (Text(f"{len(view.modules)} modules"),))
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from torchgauge.facts import View
from torchgauge.registry import lazy_names
from torchgauge.report.model import Section
from torchgauge.report.options import Options

if TYPE_CHECKING:
    from torchgauge.report.content.advice import (
        ADVICE_ROWS,
        MOST_LINES,
        error_text,
        figure_text,
        gain_text,
        gained_text,
        measured_text,
        withdrawn_text,
    )
    from torchgauge.report.content.memory import MemoryPeak, at_peak, find_memory_peak, find_peak, moments
    from torchgauge.report.content.modules import fitting_depth, outline, sort_blocks
    from torchgauge.report.content.ops import (
        RANKED_ROWS,
        LayerKind,
        UncountedOp,
        by_category,
        by_phase,
        coverage,
        layer_kinds,
        unused_modules,
    )
    from torchgauge.report.content.summary import summary_facts
    from torchgauge.report.content.sweep import sweep_points
    from torchgauge.report.content.time import between_calls_s, find_residue
    from torchgauge.report.content.weights import by_dtype, by_folder, by_role, tied

__all__ = [
    "ADVICE_ROWS", "MOST_LINES", "RANKED_ROWS", "LayerKind", "MemoryPeak", "UncountedOp", "at_peak", "between_calls_s",
    "by_category", "by_dtype", "by_folder", "by_phase", "by_role", "coverage", "error_text", "figure_text",
    "find_memory_peak", "find_peak", "find_residue", "fitting_depth", "gain_text", "gained_text",
    "layer_kinds", "measured_text", "moments", "outline", "sections_of", "sort_blocks", "summary_facts",
    "sweep_points", "tied", "unused_modules", "withdrawn_text",
]  # fmt: skip

_HOMES = {
    "advice": (
        "MOST_LINES", "ADVICE_ROWS", "error_text", "figure_text", "gain_text", "gained_text", "measured_text",
        "withdrawn_text",
    ),
    "memory": ("MemoryPeak", "at_peak", "find_memory_peak", "find_peak", "moments"),
    "modules": ("fitting_depth", "outline", "sort_blocks"),
    "ops": (
        "RANKED_ROWS", "LayerKind", "UncountedOp", "by_category", "by_phase", "coverage", "layer_kinds",
        "unused_modules",
    ),
    "summary": ("summary_facts",),
    "sweep": ("sweep_points",),
    "time": ("between_calls_s", "find_residue"),
    "weights": ("by_dtype", "by_folder", "by_role", "tied"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)


def sections_of(view: View, options: Options) -> list[Section]:
    """All sections of the report, in the order of their topics."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    found = [section for module in modules for section in module.sections(view, options)]
    return sorted(found, key=lambda section: section.topic)
