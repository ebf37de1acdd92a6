"""What a page knows: one registry of parts, each a name and the data it gives; scripts draw what is there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
