"""The text report. The lines are the same for a terminal, a pipe and a file; only a terminal gets colours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from torchgauge.facts import View
from torchgauge.report.bars import bar, course_rows, scatter
from torchgauge.report.content import sections_of
from torchgauge.report.content.summary import model_names
from torchgauge.report.layout import (
    GAP,
    MIN_TEXT_WIDTH,
    Heading,
    Line,
    Span,
    cell_width,
    lay_out,
    line_width,
    plain,
    wrap,
)
from torchgauge.report.model import (
    Block,
    Chart,
    Code,
    Course,
    Fact,
    Facts,
    Listing,
    Scatter,
    Section,
    Table,
    Text,
    Topic,
)
from torchgauge.report.options import Detail, Options
from torchgauge.report.registry import renderer
from torchgauge.units import visible

MIN_NOTE_WIDTH = 48  # of a remark next to its value
# Room for a name that identifies its row, where a table is cut into parts.
MIN_NAME_WIDTH = 32
LONGEST_BAR = 40
# Shown dim, so that the eye finds the costs.
_NOTHING = ("0", "0 B", "0.0 %", "-")


@renderer("text", suffix=".txt", contents="the report of the terminal, 100 columns wide")
def render_text(view: View, options: Options) -> str:
    return plain(report_lines(view, options))


def report_lines(view: View, options: Options) -> list[Line]:
    lines = headed_lines(title_line(view), sections_of(view, options), options.width)
    if view.capture.has_code and not options.ops:
        where = "More: --ops (ops, distributions, coverage); -o report.html (everything)"
        lines += [(), *wrap(where, options.width, style="dim")]
    return lines


def title_line(view: View) -> Line:
    first, *others = map(visible, model_names(view))
    return (Span(first, "heading"), *(Span(f" · {name}") for name in others))


def headed_lines(title: Line, sections: Sequence[Section], width: int) -> list[Line]:
    """The findings, the title and all other sections."""
    first = [section for section in sections if section.topic is Topic.FINDINGS]
    return [*sections_lines(first, width), title, *sections_lines(sections[len(first) :], width)]


def write_sections(sections: Iterable[Section], width: int) -> str:
    return plain(sections_lines(sections, width))


def sections_lines(sections: Iterable[Section], width: int) -> list[Line]:
    """Sections one after the other, a blank line between. The summary has no title: the report's is above it."""
    lines: list[Line] = []
    for section in sections:
        lines += [()] if lines else []
        if section.title and section.topic is not Topic.SUMMARY:
            lines += wrap(visible(section.title), width, style="heading")
        previous: Block | None = None
        for block in section.blocks:
            # A sentence after a table begins something new.
            is_lead = isinstance(block, Text) and not (block.is_warning or block.is_remark)
            lines += [()] if is_lead and isinstance(previous, Table) else []
            lines += block_lines(block, width)
            previous = block
    return lines


def block_lines(block: Block, width: int) -> list[Line]:
    match block:
        case Table():
            notes = [line for note in block.notes for line in wrap(visible(note), width, style="dim")]
            return [*table_lines(block, width), *notes]
        case Facts():
            return fact_lines(block.rows, width)
        case Text():
            return wrap(visible(block.text), width, style=_style(block))
        case Listing():
            return list(_list_lines(block, width))
        case Code():
            # Neither cut nor wrapped: it is for pasting.
            return [(Span(visible(line)),) for line in block.text.split("\n")]
        case Chart():
            top, room = max((value for _, value, _ in block.bars), default=0.0), max(width // 3, 10)
            rows: list[list[Line]] = [
                [(Span(visible(label)),), (Span(bar(value, top, room)),), _figure(text)]
                for label, value, text in block.bars
            ]
            headings = [Heading("", is_figure=False), Heading("", is_figure=False), Heading("")]
            return lay_out(headings, rows, width)[1:]
        case Course():
            lead = max(cell_width(label) for label, _, _ in block.lines) + 2
            room = max(width - lead - max(cell_width(text) for _, _, text in block.lines) - 1, 8)
            drawn = course_rows(block, room)
            longest = max(len(line) for _, line, _ in drawn)
            return [
                (
                    Span(_padded(visible(name), lead), "dim"),
                    Span(_padded(line, longest), "figure"),
                    Span(f" {visible(text)}", "dim"),
                )
                for name, line, text in drawn
            ]
        case Scatter():
            return [(Span(line, "dim"),) for line in scatter(block, width)]


def _style(block: Text | Listing) -> str:
    if isinstance(block, Text) and block.is_alarm:
        return "alarm"
    return "warning" if block.is_warning else "dim" if block.is_remark else ""


def _figure(text: str, *, is_warning: bool = False) -> Line:
    return (Span(visible(text), "warning" if is_warning else "dim" if text in _NOTHING else "figure"),)


def fact_lines(facts: Sequence[Fact], width: int) -> list[Line]:
    """Name, value and remark, the names and values aligned; a remark that does not fit is wrapped: next to its
    value where there is room for it, else below."""
    rows = [(visible(name), visible(value), visible(note)) for name, value, note in facts]
    names = max(cell_width(name) for name, _, _ in rows) + 2
    values = max((cell_width(value) for _, value, note in rows if note), default=0)
    values += 2 if values else 0
    lines: list[Line] = []
    for name, value, note in rows:
        lead = Span(_padded(name, names), "dim")
        if not value:
            lines += wrap(note, width, lead=(lead,))
        elif not note:
            lines.append((lead, Span(value, "figure")))
        elif names + values + cell_width(note) <= width or width - names - values >= MIN_NOTE_WIDTH:
            lines += wrap(note, width, lead=(lead, Span(_padded(value, values), "figure")), style="dim")
        else:
            lines.append((lead, Span(value, "figure")))
            lines += wrap(note, width, lead=(Span(_padded("", names)),), style="dim")
    return lines


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_width(text))


def _list_lines(block: Listing, width: int) -> Iterator[Line]:
    labels = max((len(label) for item in block.items for label, _ in item.facts), default=0) + 2
    for number, item in enumerate(block.items, start=1):
        lead = {"": "", "-": "- ", "1.": f"{number}. "}[block.mark]
        indent: Line = (Span(" " * len(lead)),)
        if not block.mark and number > 1:
            yield ()
        head = wrap(visible(item.name + item.text), width, lead=(Span(lead),) if lead else (), style=_style(block))
        if not block.mark:
            yield from head
            for label, text in item.facts:
                yield from wrap(visible(text), width, lead=(Span(f"  {label.ljust(labels)}", "dim"),))
            continue
        if block.max_lines:
            # Facts share the lines that are left; the last ones are left out where there is no room.
            head = _cut(head, block.max_lines - bool(item.facts))
            room, texts = block.max_lines - len(head), [text for _, text in item.facts]
            while len(texts) > 1 and len(_fact_of_item(("", "; ".join(texts)), indent, width)) > room:
                texts.pop()
            facts = _cut(_fact_of_item(("", "; ".join(texts)), indent, width), room) if texts else []
        else:
            facts = [line for fact in item.facts for line in _fact_of_item(fact, indent, width)]
        yield from (*head, *facts)
        for line in item.code.split("\n") if item.code else ():
            yield (*indent, Span(visible(line)))
        for fact in item.after:
            yield from _fact_of_item(fact, indent, width)


def _fact_of_item(fact: tuple[str, str], indent: Line, width: int) -> list[Line]:
    label, text = fact
    return wrap(visible(f"{label}: {text}" if label else text), width, lead=indent, style="dim")


def _cut(lines: list[Line], most: int) -> list[Line]:
    if len(lines) <= most:
        return lines
    *kept, last = lines[:most]
    *before, span = last
    return [*kept, (*before, Span(f"{span.text[:-1].rstrip()}…", span.style))]


def table_lines(table: Table, width: int) -> list[Line]:
    """The table without the columns that do not fit the width, in parts where it may be cut."""
    shown = [place for place, heading in enumerate(table.headings) if width >= heading.min_width]
    headings = [Heading(visible(heading.title), heading.is_figure) for heading in table.headings]
    rows: list[list[Line]] = []
    for cells in table.rows:
        row: list[Line] = []
        for place, cell in enumerate(cells):
            style = "warning" if cell.is_warning else "dim" if place else ""
            if headings[place].is_figure:
                row.append(_figure(cell.plain, is_warning=cell.is_warning))
            elif not cell.name:
                row.append((Span(visible(cell.text), style),))
            else:
                # The count and the space before the text are never cut.
                space, text = (" ", cell.text[1:]) if cell.text.startswith(" ") else ("", cell.text)
                count = f" ×{cell.times}{space}" if cell.times > 1 else space
                guide, name = Span(cell.guide, "guide"), Span(visible(cell.name), style or "name")
                spans = (guide, name, Span(count, "count"), Span(visible(text), "dim"))
                row.append(tuple(span for span in spans if span.text))
        rows.append(row)
    lines: list[Line] = []
    for part in _parts(table, headings, rows, shown, width):
        lines += [()] if lines else []
        lines += lay_out([headings[place] for place in part], [[row[place] for place in part] for row in rows], width)
    room = width - line_width(lines[0]) - len(GAP) if table.bars and lines else 0
    if table.bars is None or room < MIN_TEXT_WIDTH:
        return lines
    top = max((value for value in table.bars.values if value), default=0.0)
    bars = [Span(bar(value or 0.0, top, min(room, LONGEST_BAR)), "figure") for value in table.bars.values]
    drawn = [Span(visible(table.bars.title), "head"), *bars]
    return [(*line, Span(GAP), span) for line, span in zip(lines, drawn, strict=True)]


def _parts(
    table: Table, headings: Sequence[Heading], rows: Sequence[Sequence[Line]], shown: list[int], width: int
) -> Iterator[list[int]]:
    """The columns of each part of the table, one below the other."""
    if not table.headings:
        return
    if not table.group:
        yield shown
        return
    needed = []
    for place, heading in enumerate(headings):
        natural = max(cell_width(heading.title), *(line_width(row[place]) for row in rows))
        needed.append(natural if heading.is_figure else min(natural, MIN_NAME_WIDTH))
    lead, rest = shown[: table.lead], shown[table.lead :]
    part = list(lead)
    for start in range(0, len(rest), table.group):
        group = rest[start : start + table.group]
        total = sum(needed[place] + len(GAP) for place in (*part, *group)) - len(GAP)
        if part != lead and total > width:
            yield part
            part = list(lead)
        part += group
    yield part


@renderer("weights", contents="the tensors as text", scans=(".txt",))
def render_weights(view: View, options: Options) -> str:
    return plain(weight_lines(view, options))


def weight_lines(view: View, options: Options) -> list[Line]:
    sections = sections_of(view, replace(options, tensors=True, detail=Detail.LONG))
    title = (Span(visible(view.capture.target.name), "heading"),)
    return headed_lines(title, sections, options.width)
