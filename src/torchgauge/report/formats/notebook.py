"""The notebook display: a fragment of HTML that takes its colours from the page around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torchgauge.facts import View
from torchgauge.report.bars import bar, course_rows, scatter
from torchgauge.report.content import sections_of
from torchgauge.report.content.summary import model_names
from torchgauge.report.escape import html_text
from torchgauge.report.model import Block, Chart, Code, Course, Facts, Listing, Scatter, Section, Table, Text, Topic
from torchgauge.report.options import Options
from torchgauge.report.registry import renderer

_TABLE = 'style="border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.4em 0"'
_FIGURE = 'style="text-align:right;padding:.1em .8em;white-space:nowrap"'
_VALUE = 'style="text-align:left;padding:.1em .8em"'
_TEXT = 'style="text-align:left;padding:.1em .8em;white-space:pre;font-family:monospace"'
_REMARK = 'style="text-align:left;padding:.1em .8em;opacity:.65"'
_FAINT = 'style="opacity:.65"'
_ALARM = 'style="color:#d00;font-weight:bold"'
PLOT_WIDTH = 40  # characters of the longest bar or line


@renderer("fragment", contents="what a notebook shows")
def render_fragment(view: View, options: Options) -> str:
    name = " · ".join(map(html_text, model_names(view)))
    return f"<div><b>{name}</b>\n{write_sections(sections_of(view, options), options.width)}\n</div>"


def write_sections(sections: Iterable[Section], width: int) -> str:
    pieces: list[str] = []
    for section in sections:
        if section.title and section.topic is not Topic.SUMMARY:
            pieces.append(f"<div><b>{html_text(section.title)}</b></div>")
        pieces += [piece for block in section.blocks for piece in block_html(block)]
    return "\n".join(pieces)


def block_html(block: Block) -> Iterator[str]:
    match block:
        case Table():
            if block.headings and block.rows:
                styles = [_FIGURE if heading.is_figure else _TEXT for heading in block.headings]
                rows = [[cell.guide + cell.plain for cell in row] for row in block.rows]
                yield _table([heading.title for heading in block.headings], rows, styles)
            yield from (f"<div {_FAINT}>{html_text(note)}</div>" for note in block.notes)
        case Facts():
            yield _table([], block.rows, (_TEXT, _VALUE, _REMARK))
        case Text():
            style = f" {_ALARM}" if block.is_alarm else f" {_FAINT}" if block.is_remark else ""
            yield f"<div{style}>{'⚠ ' if block.is_warning or block.is_alarm else ''}{html_text(block.text)}</div>"
        case Listing():
            tag = "ol" if block.mark == "1." else "ul"
            yield f"<{tag}>"
            for item in block.items:
                facts = "".join(
                    f"<div {_FAINT}>{html_text(f'{n}: {t}' if n else t)}</div>" for n, t in (*item.facts, *item.after)
                )
                sign = "⚠ " if block.is_warning else ""
                yield f"<li>{sign}{html_text(item.name + item.text)}{facts}{_pre(item.code)}</li>"
            yield f"</{tag}>"
        case Code():
            yield _pre(block.text)
        case Chart():
            top = max((value for _, value, _ in block.bars), default=0.0)
            bars = [(label, bar(value, top, PLOT_WIDTH), text) for label, value, text in block.bars]
            yield _table([], bars, (_TEXT, _TEXT, _FIGURE))
        case Course():
            yield _table([], course_rows(block, PLOT_WIDTH), (_TEXT, _TEXT, _REMARK))
        case Scatter():
            yield _pre("\n".join(scatter(block, PLOT_WIDTH)))


def _pre(text: str) -> str:
    return "<pre>" + "\n".join(map(html_text, text.split("\n"))) + "</pre>" if text else ""


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> str:
    head = "".join(f"<th {style}>{html_text(title)}</th>" for title, style in zip(titles, styles, strict=bool(titles)))
    body = [
        "".join(f"<td {style}>{html_text(text)}</td>" for text, style in zip(row, styles, strict=True)) for row in rows
    ]
    lines = [f"<tr>{row}</tr>" for row in ([head] if titles else []) + body]
    return "\n".join([f"<table {_TABLE}>", *lines, "</table>"])
