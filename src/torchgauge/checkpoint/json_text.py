"""JSON from strangers: every way it can be wrong becomes one error."""

from __future__ import annotations

import json
from typing import Any

from torchgauge.errors import FormatError


def parse_json(content: bytes, label: str) -> dict[str, Any]:
    """The object in `content`; a key that stands twice in one object is an error."""
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{label}: its JSON is damaged: {error}") from error
    if not isinstance(value, dict):
        raise FormatError(f"{label}: its JSON is no object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    return made
