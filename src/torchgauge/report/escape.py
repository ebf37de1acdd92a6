"""Names come from models and files: they must show as text, and never act on a terminal, a page or a table. And values
as JSON that any reader accepts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from html import escape
from typing import Any

from torchgauge.units import inert_lines, visible

# Also in full width, as Excel reads them where East Asian text is typed.
_FORMULA_STARTS = "=+\\-@＝＋－＠"  # noqa: RUF001
_FORMULA = re.compile(rf"\s*[{_FORMULA_STARTS}]")
# Half of the world's spreadsheets split a line at semicolons, and do not see that the cell was quoted.
_LATER_FORMULA = re.compile(rf"(;\s*)(?=[{_FORMULA_STARTS}])")


def inert_cell(text: str) -> str:
    """The text so that a spreadsheet does not run it as a formula."""
    text = inert_lines(visible(text))
    if ";" in text:
        text = _LATER_FORMULA.sub(r"\1'", text)
    return f"'{text}" if _FORMULA.match(text) else text


def html_text(text: str) -> str:
    """Text for HTML, SVG and attributes of XML: it shows as text, and without control characters."""
    return escape(visible(text))


_ENCODER = json.JSONEncoder(allow_nan=False, default=str)


def json_line(value: Any) -> str:
    """JSON on one line that any reader accepts."""
    # Escaped beyond ASCII: a name may hold half a surrogate pair, which no encoding can write.
    try:
        text = _ENCODER.encode(value)
    except ValueError:
        # An infinity: rare enough that walking through every value beforehand would be the larger cost.
        text = json.dumps(json_value(value), allow_nan=False)
    # As in `visible`: a CI runner reads what is printed.
    return text.replace("##", "#\\u0023")


def json_value(value: Any) -> Any:
    """The value as JSON can hold it: infinities, types and slices become text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return str(value)
