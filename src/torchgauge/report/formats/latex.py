"""Tables for a paper: a fragment for \\input, of plain ASCII, that needs no package but booktabs.

Every character of a name is typeset as itself or as an escape: none reaches TeX as a command, and none asks for a font
or an encoding that the document may not have.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace

from torchgauge.facts import View
from torchgauge.report.content import sections_of
from torchgauge.report.escape import visible
from torchgauge.report.headline import model_kind
from torchgauge.report.layout import Heading, shorten
from torchgauge.report.model import Cell, Chart, Code, Facts, Section, Table, Text
from torchgauge.report.options import Options
from torchgauge.report.registry import renderer
from torchgauge.report.tables import FACTS, module_table, summary_table, weight_table
from torchgauge.units import format_exact

# Of a name, of what follows it (the type of a module), of a remark; of a figure's name, of its value.
LONGEST_NAME, LONGEST_KIND, LONGEST_TEXT = 36, 20, 120
LONGEST_FIGURE, LONGEST_VALUE = 22, 30
# Lines of \footnotesize on a page of an article, below a caption.
LONGEST_PAGE = 50
# Characters of \footnotesize on a line of an article, of the gap between columns, of an indent.
_LINE, _GAP, _INDENT = 78, 2, 1.5
# Shorter than this a name says nothing, though the table be too wide.
_LEAST = 8
# Where a long word may go to the next line; a number may not.
_JOINTS = r"(?<=[^\W\d][_.:/])(?=\w)|(?<=[_.:/])(?=[^\W\d])"
_PREAMBLE = """\
% Made by torchgauge {version}. In the preamble: \\usepackage{{booktabs}}
% In the text: \\input{{this file}}"""
_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"{\char34}", "'": r"{\char39}", "`": r"{\char96}", "-": "{-}",
    # After the end of a row these two would be its options.
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
    model = name_text(view.capture.target.name or model_kind(view))
    tables = [
        _summary(summary_table(view), f"Figures of {model}."),
        _listing(_page_of(module_table(view, options), options), f"Modules of {model}.", "modules"),
        _listing(weight_table(view), f"Values of the largest weights of {model}, siblings together.", "weights"),
    ]
    for number, section in enumerate(sections_of(view, options), start=1):
        tables += _section(section, f"section-{number}")
    preamble = _PREAMBLE.format(version=prose(view.capture.version))
    return "\n\n".join([preamble, *filter(None, tables)]) + "\n"


def prose(text: str) -> str:
    """Any text as ASCII that TeX typesets as that text."""
    return "".join(_typeset(char) or "" for char in spelled(text))


def name_text(name: str) -> str:
    """A name from the model: longer than a line is longer than TeX can measure."""
    return f"\\texttt{{{prose(shorten(spelled(name), LONGEST_NAME))}}}"


def spelled(text: str) -> str:
    """The text with escapes for what TeX has no letter for: as long as it is when it is typeset."""
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


def _summary(table: Table, caption: str) -> str:
    """Name, value, and a remark of several lines that takes what they leave of the line."""
    rows = [[_cut(row[0], LONGEST_FIGURE), _cut(row[1], LONGEST_VALUE), row[2].text] for row in table.rows]
    taken = sum(max(len(row[place]) for row in rows) + _GAP for place in (0, 1))
    columns = f"lrp{{{1 - taken / _LINE:.2f}\\linewidth}}"
    body = [[prose(name), prose(value), paragraph(remark, _LINE - taken)] for name, value, remark in rows]
    return _environment(table, body, caption, "summary", columns)


def _section(section: Section, label: str) -> list[str]:
    title, pieces = prose(section.title), []
    for block in section.blocks:
        match block:
            case Table():
                pieces.append(_listing(block, f"{title}.", label))
            case Facts():
                rows = tuple((Cell(name), Cell(value), Cell(note)) for name, value, note in block.rows)
                pieces.append(_summary(Table("", FACTS, rows), f"{title}."))
            case Text():
                pieces.append(f"{title}: {prose(block.text)}")
            case Code():
                pieces.append("\n".join(rf"\noindent\texttt{{{prose(line)}}}\par" for line in block.text.split("\n")))
            case Chart():
                bars = tuple((Cell(name=name), Cell(text)) for name, _, text in block.bars)
                listed = Table("", (Heading("", is_figure=False), Heading("")), bars)
                pieces.append(_listing(listed, f"{title}.", label))
    return pieces


def _cut(cell: Cell, length: int) -> str:
    return shorten(spelled(cell.text), length)


def paragraph(text: str, room: int) -> str:
    """More than a line is not stretched to the width, and broken in words where they are long."""
    text = shorten(spelled(text), LONGEST_TEXT)
    if len(text) <= room:
        return prose(text)
    # A word longer than the line is broken anywhere.
    pieces = re.split(rf"{_JOINTS}|(?<=\S{{{room}}})(?=\S)", text)
    return r"{\raggedright " + r"\allowbreak{}".join(map(prose, pieces)) + r"\par}"


def _page_of(table: Table, options: Options) -> Table:
    """What is asked for by its depth is given whole; else a table that floats has to fit a page."""
    if options.depth is not None or len(table.rows) <= LONGEST_PAGE:
        return table
    note = f"The first {format_exact(LONGEST_PAGE)} of {format_exact(len(table.rows))} rows; --depth gives all"
    return replace(table, rows=table.rows[:LONGEST_PAGE], notes=(*table.notes, note))


def _listing(table: Table, caption: str, label: str) -> str:
    """Names, and figures whose columns take what they need of the line."""
    if not table.rows:
        return ""
    columns = "".join("r" if heading.is_figure else "l" for heading in table.headings)
    cells = zip(*([cell.text for cell in row[1:]] for row in table.rows), strict=True)
    titles = [heading.title for heading in table.headings[1:]]
    widths = [max(map(len, (title, *texts))) for title, texts in zip(titles, cells, strict=True)]
    room = _LINE - sum(widths) - _GAP * len(widths)
    body = [[_named(row[0], room), *(prose(cell.text) for cell in row[1:])] for row in table.rows]
    return _environment(table, body, caption, label, columns)


def _named(cell: Cell, room: int) -> str:
    """A name that fits the room with what follows it, of which a part will do."""
    room = max(int(room - _INDENT * cell.level), 2 * _LEAST)
    name, kind = spelled(cell.name), spelled(cell.text)
    name = shorten(name, min(LONGEST_NAME, room - min(len(kind), _LEAST)))
    kind = shorten(kind, min(LONGEST_KIND, max(room - len(name), 0)))
    return f"{'~~' * cell.level}{name_text(name)}{prose(kind)}"


def _environment(table: Table, body: Sequence[Sequence[str]], caption: str, label: str, columns: str) -> str:
    notes = " ".join(prose(note) + "." for note in table.notes)
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"  \centering\footnotesize\setlength{\tabcolsep}{4pt}",
            f"  \\caption{{{caption}{' ' + notes if notes else ''}}}",
            f"  \\label{{tab:torchgauge-{label}}}",
            f"  \\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
            r"    \toprule",
            f"    {_row([prose(heading.title) for heading in table.headings])}",
            r"    \midrule",
            *(f"    {_row(cells)}" for cells in body),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
