"""The JSON document of the contract, valid for any reader, one row per line so that it can be searched and compared;
and its rows as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice

from torchgauge.errors import UsageError
from torchgauge.facts import View
from torchgauge.report.escape import json_line
from torchgauge.report.options import Options
from torchgauge.report.registry import renderer

# Rows per piece of text: enough that passing pieces on costs little compared with making them.
_ROWS_AT_ONCE = 256


@renderer("json", suffix=".json", contents="[everything](json.md); can be loaded again", scans=(".json",))
def render_document(view: View, options: Options) -> Iterator[str]:
    return document_pieces((key, compute()) for key, compute in view.members().items())


def document_pieces(members: Iterable[tuple[str, object]]) -> Iterator[str]:
    """A document in pieces, so that the rows of a million tensors are never all held at once."""
    separator = "{"
    for key, value in members:
        yield f"{separator}\n {json.dumps(key)}: "
        separator = ","
        if not isinstance(value, Iterator) and not (isinstance(value, list) and value):
            yield json_line(value)
            continue
        rows, opening = iter(value), "[\n"
        while piece := ",\n".join(f"  {json_line(row)}" for row in islice(rows, _ROWS_AT_ONCE)):
            yield opening + piece
            opening = ",\n"
        yield "[]" if opening == "[\n" else "\n ]"
    yield "\n}\n"


TABLES = ("inputs", "modules", "ops", "parameters", "weights", "advice", "options")


@renderer("jsonl", suffix=".jsonl", contents="one line of JSON per row, of modules, ops and weights")
def render_jsonl(view: View, options: Options) -> str:
    """The run first, then the rows in the order of the document."""
    document = view.to_dict()
    lines = [{"table": "run", **{key: value for key, value in document.items() if key not in TABLES}}]
    for table in TABLES:
        # First in the line, whatever the row itself has under that name.
        lines += [{"table": table} | row | {"table": table} for row in document.get(table, ())]
    return "".join(f"{json_line(line)}\n" for line in lines)


@renderer(
    "weights.jsonl",
    suffix=".weights.jsonl",
    contents="one line of JSON per tensor; of a scan as each tensor is done",
    scans=(".jsonl", ".weights.jsonl"),
)
def render_weights_jsonl(view: View, options: Options) -> str:
    """One JSON object per tensor, in the order of the files."""
    if not view.weights:
        raise UsageError("there are no weights to write as JSON lines: give a file of weights, or weights=True")
    return "".join(f"{json_line(row)}\n" for row in view.weights)
