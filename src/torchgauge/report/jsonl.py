"""JSON lines: the whole document, a row a line, so that files of many runs can be read together and as a stream.

The member `table` says what a line is: `run` for the members of the document that are no rows (totals, target,
environment, …), else the member the row belongs to: `inputs`, `modules`, `ops`, `parameters`, `weights`, `advice`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchgauge.facts import View
from torchgauge.report.document import json_line
from torchgauge.report.options import Options

TABLES = ("inputs", "modules", "ops", "parameters", "weights", "advice")


def render_jsonl(view: View, options: Options) -> str:
    return "".join(f"{json_line(line)}\n" for line in table_lines(view.to_dict()))


def table_lines(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The run first, then the rows in the order of the document."""
    yield {"table": "run", **{key: value for key, value in document.items() if key not in TABLES}}
    for table in TABLES:
        for row in document.get(table, ()):
            yield {"table": table} | row | {"table": table}
