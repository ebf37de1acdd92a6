"""Records of an archive, through torch's own reader."""

from __future__ import annotations

from typing import Any


def record_size(reader: Any, record: str) -> int:
    """The bytes of a record once read. Older releases of torch tell only by reading it."""
    if hasattr(reader, "get_record_size"):
        return int(reader.get_record_size(record))
    return len(reader.get_record(record))
