"""Rows to a file as they come: beside the target until all are there, then renamed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

from torchgauge.disk import draft_of
from torchgauge.errors import TorchgaugeError
from torchgauge.report.document import json_line
from torchgauge.report.saving import takes_bytes_itself


class RowStream:
    """JSON lines. Used in a `with` block: an error leaves the target as it was."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        # A link stays a link: the file it points to is replaced.
        self._final = Path(path).resolve()
        is_direct = takes_bytes_itself(self._final)
        self._draft = self._final if is_direct else draft_of(self._final)
        self._stream: BinaryIO | None = None

    def __enter__(self) -> Self:
        try:
            self._stream = self._draft.open("wb")
        except OSError as error:
            raise self._failure(error) from error
        return self

    def write(self, row: Mapping[str, Any]) -> None:
        assert self._stream is not None
        try:
            self._stream.write(json_line(row).encode() + b"\n")
        except OSError as error:
            raise self._failure(error) from error

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._stream is not None
        try:
            self._stream.close()
            if kind is None and self._draft != self._final:
                os.replace(self._draft, self._final)
        except OSError as error:
            raise self._failure(error) from error
        finally:
            if self._draft != self._final:
                self._draft.unlink(missing_ok=True)

    def _failure(self, error: OSError) -> TorchgaugeError:
        return TorchgaugeError(f"cannot write '{self._path}': {error.strerror or error}")
