"""Rows to a file as they come: beside the target until all are there, then renamed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from torchgauge.cache import Draft, open_draft
from torchgauge.report.json_text import json_line
from torchgauge.report.saving import reporting_failure


class RowStream:
    """JSON lines. Used in a `with` block: an error leaves the target as it was."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._draft: Draft | None = None

    def __enter__(self) -> Self:
        with reporting_failure(self._path):
            self._draft = open_draft(self._path)
        return self

    def write(self, row: Mapping[str, Any]) -> None:
        assert self._draft is not None
        with reporting_failure(self._path):
            self._draft.write(json_line(row).encode() + b"\n")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._draft is not None
        if kind is not None:
            self._draft.discard()
            return
        with reporting_failure(self._path):
            self._draft.commit()
