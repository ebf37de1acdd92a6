"""Reports to files: written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torchgauge.cache import replace_file
from torchgauge.errors import TorchgaugeError
from torchgauge.facts import View
from torchgauge.report.options import Options
from torchgauge.report.registry import SCAN, find_format, render_pieces


def save(view: View, path: str | Path, options: Options | None = None) -> None:
    """Write the report in the format that the suffix names."""
    write_whole(Path(path), render_pieces(view, find_format(path).name, options))


def save_weights(view: View, path: str | Path, options: Options | None = None) -> None:
    """Write the list of tensors in the format that the suffix names."""
    write_whole(Path(path), render_pieces(view, find_format(path, SCAN).name, options))


def write_whole(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """A file is replaced whole, or left as it was."""
    with reporting_failure(path):
        replace_file(path, content.encode() if isinstance(content, str) else content)


@contextmanager
def reporting_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TorchgaugeError(f"cannot write '{path}': {error.strerror or error}") from error
    except RuntimeError as error:
        # A chain of links without an end, as Path.resolve tells it before Python 3.13.
        raise TorchgaugeError(f"cannot write '{path}': {error}") from error
