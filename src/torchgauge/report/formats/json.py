"""The JSON document of the contract: valid for any reader, one row per line so that it can be searched and compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

from torchgauge.facts import View
from torchgauge.report.escape import json_line
from torchgauge.report.options import Options
from torchgauge.report.registry import renderer

# Rows per piece of text: enough that passing pieces on costs little compared with making them.
_ROWS_AT_ONCE = 256


@renderer("json", suffix=".json", contents="[everything](json.md); can be loaded again", scans=(".json",))
def render_document(view: View, options: Options) -> Iterator[str]:
    """In pieces: the rows of a million tensors are never all held at once."""
    separator = "{"
    for key, compute in view.members().items():
        yield f"{separator}\n {json.dumps(key)}: "
        separator = ","
        value = compute()
        if not isinstance(value, Iterator) and not (isinstance(value, list) and value):
            yield json_line(value)
            continue
        rows, opening = iter(value), "[\n"
        while piece := ",\n".join(f"  {json_line(row)}" for row in islice(rows, _ROWS_AT_ONCE)):
            yield opening + piece
            opening = ",\n"
        yield "[]" if opening == "[\n" else "\n ]"
    yield "\n}\n"
