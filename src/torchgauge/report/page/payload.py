"""The data of the page: a registry of parts, each a name and what it gives; rows are stored as columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torchgauge.facts import View
from torchgauge.report.escape import visible
from torchgauge.report.options import Options

# Plain JSON data, or None where there is nothing to show.
Part = Callable[[View, Options], Any]

PARTS: dict[str, Part] = {}
_AS_IT_IS = frozenset({int, bool, type(None)})


def part(name: str) -> Callable[[Part], Part]:
    """Register the data of one part of the page."""

    def register(make: Part) -> Part:
        if name in PARTS:
            raise ValueError(f"the page has a part '{name}' already")
        PARTS[name] = make
        return make

    return register


def build_payload(view: View, options: Options) -> dict[str, Any]:
    return {name: plain(make(view, options)) for name, make in PARTS.items()}


def plain(value: Any) -> Any:
    """The value as JSON for a page: every text shows as it is, and what is not finite is absent."""
    if isinstance(value, str):
        return _shown(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_shown(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        # Most of a large page are columns of whole numbers: they are looked at once, not one by one.
        return list(value) if _AS_IT_IS.issuperset(map(type, value)) else [plain(item) for item in value]
    return _shown(str(value))


def _shown(text: str) -> str:
    """Lines stay lines (code is shown too); every other character that would not show as itself is an escape."""
    return "\n".join(map(visible, text.split("\n"))) if "\n" in text else visible(text)


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
