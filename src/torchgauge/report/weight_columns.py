"""A weight's row made flat, for tables: `quantile_0.5`, `int8_per_tensor_sqnr_db`, `pruning_rows_0.01`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchgauge.facts import Row
from torchgauge.facts.figures import Unit

# Long lists say nothing in a cell; the JSON has them.
_LEFT_OUT = frozenset({"histogram", "singular_values", "code_counts"})
# The start of a nested name where the key itself would only be repeated.
_PREFIXES = {"quantiles": "quantile_", "quantization": "", "spectrum": ""}
_SEPARATOR = "; "
# Columns that only a flat row has; the others are in the table of figures.
FLAT = {
    "smallest_30db": Unit.TEXT,
    "smallest_20db": Unit.TEXT,
    "recommendations": Unit.TEXT,
    "histogram_edges": Unit.NUMBERS,
    "histogram_counts": Unit.NUMBERS,
}


def flat_rows(rows: Sequence[Row]) -> list[Row]:
    """All rows with the same columns, in the order in which they first appear; None where a row lacks one."""
    flat = [dict(_flat(row, "")) for row in rows]
    columns = dict.fromkeys(key for row in flat for key in row)
    return [Row({key: row.get(key) for key in columns}) for row in flat]


def _flat(mapping: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if key in _LEFT_OUT:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, prefix + _PREFIXES.get(key, f"{key}_"))
        else:
            yield prefix + key, _SEPARATOR.join(value) if key == "recommendations" and value is not None else value
