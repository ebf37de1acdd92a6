"""Text from untrusted files: JSON, and names that are safe to print."""

from __future__ import annotations

import json

from torchgauge.errors import FormatError

_MAX_PRINTED_CHARACTERS = 300


def parse_json(content: bytes, label: str) -> dict[str, object]:
    """The JSON object in `content`; a duplicate key is an error."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(pairs)
        if len(members) != len(pairs):
            raise ValueError("duplicate key")
        return members

    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{label}: invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise FormatError(f"{label}: expected a JSON object")
    return value


def printable(text: str) -> str:
    """Text that can be encoded as UTF-8, shortened to fit a message."""
    text = text if len(text) <= _MAX_PRINTED_CHARACTERS else text[:_MAX_PRINTED_CHARACTERS] + "…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
