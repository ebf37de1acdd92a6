"""Everything in one text file: chapters of sections, every parameter and every op.

A chapter that has nothing says why, and how to get it.
"""

from __future__ import annotations

from dataclasses import replace

from torchgauge.facts import View
from torchgauge.report.content import sections_of
from torchgauge.report.formats.text import headed_lines, sections_lines, title_line
from torchgauge.report.layout import Span, plain, wrap
from torchgauge.report.model import Topic
from torchgauge.report.options import Detail, Options
from torchgauge.report.registry import renderer

NO_CODE = "Only weights, no code to run: add --as TARGET to count its operations."
NOT_CONSUMED = (
    "Not requested: --inference --profile measures the energy if there is a meter, and estimates it otherwise."
)
NOT_MEASURED = "Nothing was measured: --inference times the model on this machine, --profile its ops too."
# The title, its topics, and the text of an empty chapter. Other sections come last.
CHAPTERS: tuple[tuple[str, tuple[Topic, ...], str], ...] = (
    ("EXECUTIVE SUMMARY", (Topic.SUMMARY,), ""),
    ("ARCHITECTURE", (Topic.MODULES, Topic.LAYERS), ""),
    ("PARAMETER ANALYSIS", (Topic.CHANGES, Topic.WEIGHTS), ""),
    ("COMPUTATIONAL ANALYSIS", (Topic.OPS,), NO_CODE),
    ("ENERGY ANALYSIS", (Topic.ENERGY,), NOT_CONSUMED),
    ("PERFORMANCE PROFILE", (Topic.TIME, Topic.MEMORY, Topic.SWEEP, Topic.SYSTEM), NOT_MEASURED),
    ("PARAMETERS, ONE BY ONE", (Topic.PARAMETERS,), "The model has no parameters."),
    ("NODES, ONE BY ONE", (Topic.NODES,), NO_CODE),
    ("RECOMMENDATIONS", (Topic.ADVICE,), "No rule found anything to recommend."),
    ("ENVIRONMENT AND METHOD", (Topic.ENVIRONMENT, Topic.NOTES), ""),
)


@renderer(
    "comprehensive",
    suffix="comprehensive_model_analysis.txt",
    contents="the full text report: every parameter and every op",
    scans=("comprehensive_model_analysis.txt",),
)
def render_comprehensive(view: View, options: Options) -> str:
    sections = sections_of(view, replace(options, detail=Detail.FULL))
    head = [section for section in sections if section.topic is Topic.FINDINGS]
    placed = {Topic.FINDINGS} | {topic for _, topics, _ in CHAPTERS for topic in topics}
    others = tuple(topic for topic in Topic if topic not in placed)
    chapters = CHAPTERS
    if any(section.topic in others for section in sections):
        chapters = (*CHAPTERS, ("DETAILS", others, ""))
    rule = "=" * min(options.width, 80)
    lines = headed_lines((Span("COMPREHENSIVE MODEL ANALYSIS", "heading"),), head, options.width)
    lines.append(title_line(view))
    for title, topics, absent in chapters:
        lines += [(), (Span(rule, "dim"),), (Span(title, "heading"),), (Span(rule, "dim"),)]
        inside = [section for topic in topics for section in sections if section.topic is topic]
        lines += sections_lines(inside, options.width) or wrap(absent, options.width, style="dim")
    return plain(lines)
