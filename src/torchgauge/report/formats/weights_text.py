"""The list of a checkpoint's tensors as text: totals, values, then by folder of names, type and role."""

from __future__ import annotations

from dataclasses import replace

from torchgauge.facts import View
from torchgauge.report.content import sections_of
from torchgauge.report.escape import visible
from torchgauge.report.formats.text import sections_lines
from torchgauge.report.layout import Line, Span, plain
from torchgauge.report.options import Detail, Options
from torchgauge.report.registry import renderer


@renderer("weights", contents="the tensors as text", scans=(".txt",))
def render_weights(view: View, options: Options) -> str:
    return plain(weight_lines(view, options))


def weight_lines(view: View, options: Options) -> list[Line]:
    sections = sections_of(view, replace(options, tensors=True, detail=Detail.LONG))
    title = (Span(visible(view.capture.target.name), "heading"),)
    return [title, *sections_lines(sections, options.width)]
