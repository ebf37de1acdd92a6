"""Tables for a paper: a fragment for \\input, of plain ASCII, that needs no package but booktabs.

Every character of a name is typeset as itself or as an escape: none reaches TeX as a command, and none asks for a font
or an encoding that the document may not have.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil

from torchgauge.facts import View
from torchgauge.report.content import sections_of
from torchgauge.report.content.summary import model_kind
from torchgauge.report.layout import shorten
from torchgauge.report.model import Block, Chart, Code, Course, Facts, Listing, Scatter, Section, Table, Text, Topic
from torchgauge.report.options import Detail, Options
from torchgauge.report.registry import renderer
from torchgauge.units import format_exact, visible

# These are for the reader of the run, not of the paper.
LEFT_OUT = (Topic.FINDINGS, Topic.ADVICE, Topic.NOTES)
# Characters of a name, of the text after it (the type of a module), of a remark; of a figure's name, of its value.
LONGEST_NAME, LONGEST_KIND, LONGEST_TEXT = 36, 20, 120
LONGEST_FIGURE, LONGEST_VALUE = 22, 30
# Lines of \footnotesize on a page of an article, below a caption.
LONGEST_PAGE = 50
# Characters of \footnotesize on a line of an article, of the gap between columns, of an indent.
_LINE, _GAP, _INDENT = 78, 2, 1.5
# Characters of \normalsize on a line of a list.
_PROSE_LINE = 52
# How much wider these are than a letter, in letters.
_WIDE = {"×": 0.8, "→": 1.3, "≈": 0.8, "−": 0.8, "…": 1.6, "<": 0.6, ">": 0.6}
# A shorter name would say nothing: rather let the table be too wide.
_SHORTEST_NAME = 8
# Where a long word may be broken; a number may not.
_JOINTS = r"(?<=[^\W\d][_.:/])(?=\w)|(?<=[_.:/])(?=[^\W\d])"

_PREAMBLE = """\
% Made by torchgauge {version}. In the preamble: \\usepackage{{booktabs}}
% In the text: \\input{{this file}}"""
_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"{\char34}", "'": r"{\char39}", "`": r"{\char96}", "-": "{-}",
    # After the end of a row TeX would read these two as its options.
    "[": "{[}", "*": "{*}",
    "×": r"$\times$", "≈": r"$\approx$", "·": r"$\cdot$", "→": r"$\rightarrow$", "−": "$-$", "–": "--",
    "…": r"\ldots{}", "µ": r"$\mu$", "±": r"$\pm$", "\u00a0": "~", "ß": r"{\ss}",
}  # fmt: skip
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u030a": "r", "\u0327": "c",
    "\u030c": "v",
}  # fmt: skip


@renderer("latex", suffix=".tex", contents="tables with booktabs, ready for a paper", scans=(".tex",))
def render_latex(view: View, options: Options) -> str:
    sections = [s for s in sections_of(view, replace(options, detail=Detail.LONG)) if s.topic not in LEFT_OUT]
    if options.depth is None:
        # A floating table has to fit a page, unless the reader asked for a depth.
        note = f"The first {format_exact(LONGEST_PAGE)} of {{}} rows; --depth gives all"
        for place, section in enumerate(sections):
            if section.topic is Topic.MODULES:
                blocks = tuple(
                    replace(b, rows=b.rows[:LONGEST_PAGE], notes=(*b.notes, note.format(format_exact(len(b.rows)))))
                    if isinstance(b, Table) and len(b.rows) > LONGEST_PAGE
                    else b
                    for b in section.blocks
                )
                sections[place] = replace(section, blocks=blocks)
    model = name_text(view.capture.target.name or model_kind(view))
    preamble = _PREAMBLE.format(version=escape_latex(view.capture.version))
    return f"{preamble}\n\n{write_sections(sections, options.width, model)}"


def write_sections(sections: Iterable[Section], width: int, model: str = "") -> str:
    """A table for each table, list of facts or chart, labelled with the name of its section; `model` goes before each
    caption."""
    pieces = []
    for section in sections:
        title = f"{model}: {escape_latex(section.title)}" if model else escape_latex(section.title)
        for number, block in enumerate(section.blocks, start=1):
            label = section.label if number == 1 else f"{section.label}-{number}"
            pieces.append(block_text(block, title, label))
    return "\n\n".join(filter(None, pieces)) + "\n"


def block_text(block: Block, title: str, label: str) -> str:
    match block:
        case Table():
            return _listing(block, f"{title}.", label)
        case Facts():
            # The remark takes what name and value leave of the line, and may have several lines.
            cut = [
                (shorten(spelled(name), LONGEST_FIGURE), shorten(spelled(value), LONGEST_VALUE), note)
                for name, value, note in block.rows
            ]
            taken = sum(max(len(row[place]) for row in cut) + _GAP for place in (0, 1))
            body = [
                [escape_latex(name), escape_latex(value), paragraph(note, _LINE - taken)] for name, value, note in cut
            ]
            columns = f"lrp{{{1 - taken / _LINE:.2f}\\linewidth}}"
            return _environment(block.as_table(), body, f"{title}.", label, columns)
        case Text():
            return f"{title}: {escape_latex(block.text)}"
        case Listing():
            items = "\n".join(
                rf"  \item {name_text(item.name) if item.name else ''}{paragraph(item.text, _PROSE_LINE)} "
                + " ".join(paragraph(text, _PROSE_LINE) for _, text in (*item.facts, *item.after))
                for item in block.items
            )
            return f"\\begin{{itemize}}\n{items}\n\\end{{itemize}}"
        case Code():
            return "\n".join(rf"\noindent\texttt{{{escape_latex(line)}}}\par" for line in block.text.split("\n"))
        case Chart():
            return _listing(block.as_table(), f"{title}.", label)
        case Course() | Scatter():
            # Drawn in characters that TeX has no letters for; a table next to them has the figures.
            return ""


def escape_latex(text: str) -> str:
    """Any text as ASCII that TeX typesets as that text."""
    return "".join(_typeset(char) or "" for char in spelled(text))


def name_text(name: str) -> str:
    """A name from the model; TeX cannot measure one that is longer than a line."""
    return f"\\texttt{{{escape_latex(shorten(spelled(name), LONGEST_NAME))}}}"


def spelled(text: str) -> str:
    """The text with escapes for characters that TeX lacks: as long as it is when typeset."""
    return "".join(char if _typeset(char) else char.encode("unicode_escape").decode("ascii") for char in visible(text))


def _typeset(char: str) -> str | None:
    if char in _SPECIAL:
        return _SPECIAL[char]
    if char.isascii():
        return char
    parts = unicodedata.normalize("NFD", char)
    base, mark = parts[:1], parts[1:]
    if mark in _ACCENTS and base.isascii() and base.isalpha():
        # The letters i and j lose their dot under an accent.
        letter = f"\\{base}" if base in "ij" else base
        return f"\\{_ACCENTS[mark]}{{{letter}}}"
    return None


def paragraph(text: str, room: int) -> str:
    """More than a line is not stretched to the width, and broken in words where they are long."""
    text = shorten(spelled(text), LONGEST_TEXT)
    if len(text) <= room:
        return escape_latex(text)
    # A word longer than the line is broken anywhere.
    pieces = re.split(rf"{_JOINTS}|(?<=\S{{{room}}})(?=\S)", text)
    return r"{\raggedright " + r"\allowbreak{}".join(map(escape_latex, pieces)) + r"\par}"


def _listing(table: Table, caption: str, label: str) -> str:
    """Figures take the room they need; names and texts share the rest of the line."""
    if not table.rows:
        return "\n\n".join(escape_latex(note) for note in table.notes)
    widths = []
    for place, heading in enumerate(table.headings):
        longest = max(_width(spelled(row[place].plain)) + _INDENT * row[place].level for row in table.rows)
        cut = longest if heading.is_figure else min(longest, LONGEST_NAME + LONGEST_KIND)
        widths.append(max(len(heading.title), ceil(cut)))
    flexible = [place for place, heading in enumerate(table.headings) if not heading.is_figure]
    while flexible and sum(widths) + _GAP * (len(widths) - 1) > _LINE:
        widest = max(flexible, key=lambda place: widths[place])
        if widths[widest] <= 2 * _SHORTEST_NAME:
            break
        widths[widest] -= 1
    body = []
    for row in table.rows:
        cells = []
        for cell, heading, width in zip(row, table.headings, widths, strict=True):
            if heading.is_figure:
                cells.append(escape_latex(cell.plain))
                continue
            # The name and the text after it fit the room together; that text may be cut short.
            room = max(int(width - _INDENT * cell.level), 2 * _SHORTEST_NAME)
            name, kind = spelled(cell.name), spelled(cell.plain.removeprefix(cell.name))
            if not name:
                cells.append(escape_latex(_fitted(kind, room)))
                continue
            name = _fitted(name, min(LONGEST_NAME, room - min(len(kind), _SHORTEST_NAME)))
            kind = _fitted(kind, min(LONGEST_KIND, max(room - len(name), 0)))
            cells.append(f"{'~~' * cell.level}{name_text(name)}{escape_latex(kind)}")
        body.append(cells)
    columns = "".join("r" if heading.is_figure else "l" for heading in table.headings)
    return _environment(table, body, caption, label, columns)


def _width(text: str) -> float:
    return len(text) + sum(text.count(char) * more for char, more in _WIDE.items())


def _fitted(text: str, room: int) -> str:
    return next((cut for size in range(room, 0, -1) if _width(cut := shorten(text, size)) <= room), "")


def _environment(table: Table, body: Sequence[Sequence[str]], caption: str, label: str, columns: str) -> str:
    notes = " ".join(escape_latex(note.rstrip(".")) + "." for note in table.notes)
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"  \centering\footnotesize\setlength{\tabcolsep}{4pt}",
            f"  \\caption{{{caption}{' ' + notes if notes else ''}}}",
            f"  \\label{{tab:torchgauge-{label}}}",
            f"  \\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
            r"    \toprule",
            "    " + " & ".join(escape_latex(heading.title) for heading in table.headings) + r" \\",
            r"    \midrule",
            *("    " + " & ".join(cells) + r" \\" for cells in body),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )
