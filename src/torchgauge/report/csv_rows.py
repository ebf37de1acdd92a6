"""Rows as CSV: raw figures, shapes as `1x3x224x224`, nested values as JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from torchgauge.facts import Row
from torchgauge.report.escape import inert_cell
from torchgauge.report.json_text import json_value


def rows_to_csv(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    """`columns` head a table that may have no rows; where there are some, they name their own."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(inert_cell, rows[0] if rows else columns or ()))
    writer.writerows([_cell(key, value) for key, value in row.items()] for row in rows)
    return buffer.getvalue()


def _cell(key: str, value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str):
        return inert_cell(value)
    if key == "shape":
        return _dims(value)
    if key.endswith("_shapes"):
        return " ".join(map(_dims, value))
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return inert_cell(" ".join(value))
    if isinstance(value, list | dict):
        return inert_cell(json.dumps(json_value(value)))
    return value


def _dims(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in shape) or "scalar"
