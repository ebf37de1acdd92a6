"""Rows as columns, so that a page of 20,000 ops stays small: equal values are written once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Of the ends of a range, which only a tooltip shows with three digits.
_DIGITS = 5


def shortened(values: Iterable[Any]) -> list[Any]:
    return [float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value for value in values]


def columns(length: int, values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The columns that hold anything."""
    filled = {key: column for key, column in values.items() if any(value is not None for value in column)}
    return {"length": length, "columns": {key: encode(column) for key, column in filled.items()}}


def encode(values: Sequence[Any]) -> Any:
    """The values as they are, as {"same": value}, or as {"table": distinct values, "index": their places}."""
    places: dict[Any, int] = {}
    index = [places.setdefault(value, len(places)) for value in values]
    if len(places) == 1:
        return {"same": values[0]}
    if len(places) * 2 > len(values):
        return list(values)
    return {"table": list(places), "index": index}
