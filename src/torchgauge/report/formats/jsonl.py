"""JSON lines: the whole document, a row a line, so that files of many runs can be read together and as a stream.

The member `table` says what a line is: `run` for the members of the document that are not rows (totals, target,
environment, …), else the member the row belongs to: `inputs`, `modules`, `ops`, `parameters`, `weights`, `advice`,
`options`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchgauge.errors import UsageError
from torchgauge.facts import View
from torchgauge.report.escape import json_line
from torchgauge.report.options import Options
from torchgauge.report.registry import renderer

TABLES = ("inputs", "modules", "ops", "parameters", "weights", "advice", "options")


@renderer("jsonl", suffix=".jsonl", contents="one line of JSON per row, of modules, ops and weights")
def render_jsonl(view: View, options: Options) -> str:
    return "".join(f"{json_line(line)}\n" for line in table_lines(view.to_dict()))


def table_lines(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The run first, then the rows in the order of the document."""
    yield {"table": "run", **{key: value for key, value in document.items() if key not in TABLES}}
    for table in TABLES:
        for row in document.get(table, ()):
            yield {"table": table} | row | {"table": table}


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
