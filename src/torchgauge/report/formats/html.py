"""The report as one page that works offline."""

from __future__ import annotations

from torchgauge.facts import View
from torchgauge.report.options import Options
from torchgauge.report.page import render_page
from torchgauge.report.registry import renderer


@renderer(
    "html",
    suffix=".html",
    contents="one self-contained page, offline: overview, module map, tables, graph, roofline, memory, time, energy, "
    "weights, advice",
    scans=(".html",),
)
def render_html(view: View, options: Options) -> str:
    return render_page(view, options)
