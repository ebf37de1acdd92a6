"""The JSON document of the contract: valid for any reader, one row per line so that it can be searched and compared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from torchgauge.facts import View
from torchgauge.report.options import Options

# Rows to a piece of text: enough that handing on the pieces costs nothing beside making them.
_ROWS_AT_ONCE = 256

_ENCODER = json.JSONEncoder(allow_nan=False, default=str)


def render_document(view: View, options: Options) -> Iterator[str]:
    """In pieces: the rows of a million tensors are never all held at once."""
    before = "{"
    for key, compute in view.members().items():
        yield f"{before}\n {json.dumps(key)}: "
        yield from _member(compute())
        before = ","
    yield "\n}\n"


def _member(value: Any) -> Iterator[str]:
    if not isinstance(value, Iterator) and not (isinstance(value, list) and value):
        yield json_line(value)
        return
    rows = iter(value)
    before = "[\n"
    while piece := ",\n".join(f"  {json_line(row)}" for row in islice(rows, _ROWS_AT_ONCE)):
        yield before + piece
        before = ",\n"
    yield "[]" if before == "[\n" else "\n ]"


def json_line(value: Any) -> str:
    """JSON on one line that any reader takes."""
    # Escaped beyond ASCII: a name may hold half a surrogate pair, which no encoding can write.
    try:
        return _ENCODER.encode(value)
    except ValueError:
        # An infinity: rare enough that walking through every value beforehand would be the larger cost.
        return json.dumps(json_value(value), allow_nan=False)


def json_value(value: Any) -> Any:
    """The value with what JSON cannot hold (infinities, types, slices) given by its text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return dict(_members(value))
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return str(value)


def _members(mapping: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        yield str(key), json_value(value)
