"""The methods of a text that may make it longer: torch's own would fill the memory before anyone could ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchgauge.capture.signals import Endless

LONGEST = 1 << 22  # elements of one list or text that a graph may make; `Budget` has the limit for all of them


def require_length(count: int) -> None:
    if count > LONGEST:
        raise Endless(f"the graph makes a list or text of {count:,} elements")


def require_spelled_length(*values: Any) -> None:
    """Of what goes through every list in a list: a thousand times one list is short in memory and long when spelled."""
    waiting: list[Any] = [values]
    count = 0
    while waiting:
        items = waiting.pop()
        count += len(items)
        require_length(count)
        nested = items.values() if isinstance(items, dict) else items
        waiting.extend(item for item in nested if isinstance(item, list | tuple | dict))


def _padded(pad: Callable[..., str]) -> Callable[..., str]:
    def run(text: str, width: int, *fill: str) -> str:
        require_length(width)
        return pad(text, width, *fill)

    return run


def _expand_tabs(text: str, size: int = 8) -> str:
    require_length(len(text) + text.count("\t") * size)
    return text.expandtabs(size)


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    found = text.count(old)
    times = found if limit < 0 else min(found, limit)
    require_length(len(text) + times * (len(new) - len(old)))
    return text.replace(old, new, limit)


def _join(separator: str, parts: list[str]) -> str:
    require_length(len(separator) * len(parts) + sum(map(len, parts)))
    return separator.join(parts)


TEXTS: dict[str, Callable[..., Any]] = {
    "aten::ljust": _padded(str.ljust),
    "aten::rjust": _padded(str.rjust),
    "aten::center": _padded(str.center),
    "aten::zfill": _padded(str.zfill),
    "aten::expandtabs": _expand_tabs,
    "aten::replace": _replace,
    "aten::join": _join,
}
