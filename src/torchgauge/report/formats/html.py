"""The report as one page that works offline."""

from __future__ import annotations

from torchgauge.facts import View
from torchgauge.registry import collector_paused
from torchgauge.report.content.summary import model_kind
from torchgauge.report.options import Options
from torchgauge.report.page import SECTIONS, assemble, build_payload
from torchgauge.report.registry import renderer


@renderer(
    "html",
    suffix=".html",
    contents="one self-contained page, offline: overview, module map, tables, graph, roofline, memory, time, energy, "
    "weights, advice",
    scans=(".html",),
)
def render_html(view: View, options: Options) -> str:
    with collector_paused():
        return assemble(view.capture.target.name or model_kind(view), build_payload(view, options), SECTIONS)
