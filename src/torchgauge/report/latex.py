"""Tables for a paper: a fragment for \\input, of plain ASCII, that needs no package but booktabs.

Every character of a name is typeset as itself or as an escape: none reaches TeX as a command, and none asks for a font
or an encoding that the document may not have.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from torchgauge.report.escape import visible
from torchgauge.report.headline import model_kind
from torchgauge.report.layout import Heading, shorten
from torchgauge.report.options import Options
from torchgauge.report.registry import renderer
from torchgauge.report.tables import Cell, Table, module_table, summary_table, weight_table
from torchgauge.view import View

# Of a name, of what follows it (the type of a module), of a remark.
LONGEST_NAME, LONGEST_KIND, LONGEST_TEXT = 36, 20, 120
# Name, value, and a remark of several lines.
_WRAPPED = r"lrp{0.52\linewidth}"
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


@renderer("latex", suffix=".tex")
def render_latex(view: View, options: Options) -> str:
    model = name_text(view.capture.target.name or model_kind(view))
    tables = [
        _environment(summary_table(view), f"Figures of {model}.", "summary", columns=_WRAPPED),
        _environment(module_table(view, options), f"Modules of {model}.", "modules"),
        _environment(weight_table(view), f"Values of the largest weights of {model}, siblings together.", "weights"),
    ]
    preamble = _PREAMBLE.format(version=prose(view.capture.version))
    return "\n\n".join([preamble, *filter(None, tables)]) + "\n"


def prose(text: str) -> str:
    """Any text as ASCII that TeX typesets as that text."""
    return "".join(map(_typeset, visible(text)))


def name_text(name: str) -> str:
    """A name from the model: longer than a line is longer than TeX can measure."""
    return f"\\texttt{{{prose(shorten(visible(name), LONGEST_NAME))}}}"


def _typeset(char: str) -> str:
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
    return prose(char.encode("unicode_escape").decode("ascii"))


def _environment(table: Table, caption: str, label: str, columns: str | None = None) -> str:
    if not table.rows:
        return ""
    columns = columns or "".join("r" if heading.is_figure else "l" for heading in table.headings)
    notes = " ".join(prose(note) + "." for note in table.notes)
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"  \centering\footnotesize\setlength{\tabcolsep}{4pt}",
            f"  \\caption{{{caption}{' ' + notes if notes else ''}}}",
            f"  \\label{{tab:torchgauge-{label}}}",
            f"  \\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
            r"    \toprule",
            f"    {_heading_row(table.headings)}",
            r"    \midrule",
            *(f"    {_row(row)}" for row in table.rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


def _heading_row(headings: Sequence[Heading]) -> str:
    return " & ".join(prose(heading.title) for heading in headings) + r" \\"


def _row(row: Sequence[Cell]) -> str:
    return " & ".join(map(_cell, row)) + r" \\"


def _cell(cell: Cell) -> str:
    if not cell.name:
        return prose(shorten(visible(cell.text), LONGEST_TEXT))
    return f"{'~~' * cell.level}{name_text(cell.name)}{prose(shorten(visible(cell.text), LONGEST_KIND))}"
