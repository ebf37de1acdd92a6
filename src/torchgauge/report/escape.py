"""Names come from models and files: what they hold must show as text, never act on a terminal or a table."""

from __future__ import annotations

import unicodedata

# Controls (escape sequences, line feeds), formats (bidirectional overrides), surrogates, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_FORMULA_STARTS = ("=", "+", "-", "@")


def visible(text: str) -> str:
    """The text with every character that would not show as itself written as an escape, such as `\\x1b`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(char) if unicodedata.category(char) in _HIDDEN else char for char in text)


def inert_cell(text: str) -> str:
    """The text so that a spreadsheet does not run it as a formula."""
    text = visible(text)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
