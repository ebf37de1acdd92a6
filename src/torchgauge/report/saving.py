"""Reports and streams of rows to files: written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from torchgauge import cache
from torchgauge.errors import TorchgaugeError
from torchgauge.facts import View
from torchgauge.facts.figures import Members
from torchgauge.report.escape import json_line
from torchgauge.report.options import Options
from torchgauge.report.registry import SCAN, find_format, render_pieces


def save(view: View, path: str | Path, options: Options | None = None) -> None:
    """Write the report in the format that the suffix names."""
    write_whole(Path(path), render_pieces(view, find_format(path).name, options))


def save_weights(view: View, path: str | Path, options: Options | None = None) -> None:
    """Write the list of tensors in the format that the suffix names."""
    write_whole(Path(path), render_pieces(view, find_format(path, SCAN).name, options))


def write_whole(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """The file is replaced whole or left unchanged."""
    with reporting_failure(path):
        cache.replace_file(path, content.encode() if isinstance(content, str) else content)


@contextmanager
def reporting_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TorchgaugeError(f"cannot write '{path}': {error.strerror or error}") from error
    except RuntimeError as error:
        # A loop of symbolic links, which Path.resolve reports this way before Python 3.13.
        raise TorchgaugeError(f"cannot write '{path}': {error}") from error


class RowStream:
    """JSON lines. Used in a `with` block: an error leaves the target unchanged."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._draft: cache.Draft | None = None

    def __enter__(self) -> Self:
        with reporting_failure(self._path):
            self._draft = cache.writer.draft(self._path)
        return self

    def write(self, row: Members) -> None:
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
