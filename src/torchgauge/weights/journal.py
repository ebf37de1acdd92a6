"""Journal of a scan: finished tensors on disk, so that an interrupted scan can be resumed.

Every line is passed to the operating system as it is written: a killed process loses at most the last one. Each line
starts with a checksum; a line that is torn, edited or from another scan is ignored and its tensor is read again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NotRequired, Self, TypedDict

from torchgauge import __version__, cache
from torchgauge.weights.reader import FileStamp
from torchgauge.weights.tally import Tally, tally_from_json, tally_to_json
from torchgauge.weights.tensors import TensorResult

if TYPE_CHECKING:
    from torchgauge.facts.document_types import ScannedTensor

# A shorter scan is faster to repeat than to write down.
WRITE_AFTER_S = 2.0


def scan_id(stamps: dict[str, FileStamp], options: Iterable[object]) -> bytes:
    """The state of the files, the options and the version: after a change the scan starts anew."""
    files = sorted((os.path.realpath(file), stamp.size, stamp.mtime_ns) for file, stamp in stamps.items())
    return blake2b(repr((files, list(options), __version__)).encode(errors="surrogatepass"), digest_size=16).digest()


class _Line(TypedDict):
    """A finished tensor has a `row`, a started one the number of its `pieces` that were tallied."""

    name: str
    tally: dict[str, Any]
    row: NotRequired[ScannedTensor]
    fingerprint: NotRequired[str | None]
    pieces: NotRequired[int]


class Journal:
    """Without a `path` nothing is written. If the folder is not writable, the scan merely cannot be resumed.

    Who has written the result of the scan removes the journal: until then, nothing of the scan is lost."""

    def __init__(self, path: Path | None, identity: bytes = b"", *, resume: bool = False) -> None:
        self._path = path
        self._scan_id = identity
        self._start = time.monotonic()
        # Offsets of the last line of each tensor.
        self._results: dict[str, int] = {}
        self._partials: dict[str, int] = {}
        self._has_written = False
        self._reader: BinaryIO | None = None
        if path is not None:
            # The journal of an interrupted scan is resumed, otherwise removed.
            with suppress(OSError):
                if resume:
                    self._reader = path.open("rb")
                else:
                    cache.writer.remove(path)
        if self._reader is not None:
            offset = 0
            for text in iter(self._reader.readline, b""):
                if (line := self._parse(text)) is not None:
                    (self._results if "row" in line else self._partials)[line["name"]] = offset
                offset += len(text)
        self._is_resumed = bool(self._results or self._partials)
        if path is not None and self._reader is not None and not self._is_resumed:
            # Of another state of the files.
            self.__exit__()
            with suppress(OSError):
                cache.writer.remove(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    @property
    def size(self) -> int:
        """The number of tensors that an earlier scan finished or started."""
        return len(self._results.keys() | self._partials.keys())

    def has_result(self, name: str) -> bool:
        return name in self._results

    def result(self, name: str) -> TensorResult | None:
        line = self._read_line(self._results.get(name))
        if line is None:
            return None
        return TensorResult(name, line["row"], tally_from_json(line["tally"]), line["fingerprint"])

    def partial_tally(self, name: str) -> tuple[int, Tally] | None:
        """The number of pieces of a large tensor that were tallied, and their tally."""
        line = self._read_line(self._partials.get(name))
        return None if line is None else (line["pieces"], tally_from_json(line["tally"]))

    def write_result(self, tensor: TensorResult) -> None:
        if tensor.tally is not None and tensor.name not in self._results:
            facts = {"name": tensor.name, "row": tensor.row, "fingerprint": tensor.fingerprint}
            self._write(facts, tensor.tally)

    def write_partial(self, name: str, pieces: int, tally: Tally) -> None:
        self._write({"name": name, "pieces": pieces}, tally)

    def _write(self, line: Mapping[str, object], tally: Tally) -> None:
        is_due = self._is_resumed or time.monotonic() - self._start >= WRITE_AFTER_S
        if self._path is None or not is_due:
            return
        try:
            text = json.dumps({**line, "tally": tally_to_json(tally)}).encode()
            # The last line of the interrupted scan may be torn.
            separator = b"" if self._has_written or not self._path.exists() else b"\n"
            cache.writer.append(self._path, separator + self._checksum(text) + b" " + text + b"\n")
            self._has_written = True
        except OSError:
            self._path = None  # disk or journal full, or folder not writable: scan on without a journal

    def _read_line(self, offset: int | None) -> _Line | None:
        if self._reader is None or offset is None:
            return None
        self._reader.seek(offset)
        return self._parse(self._reader.readline())

    def _parse(self, text: bytes) -> _Line | None:
        checksum, _, content = text.rstrip(b"\n").partition(b" ")
        if checksum != self._checksum(content):
            return None
        line: _Line = json.loads(content)
        return line

    def _checksum(self, content: bytes) -> bytes:
        """The checksum covers the line and the identity of the scan."""
        return blake2b(self._scan_id + content, digest_size=16).hexdigest().encode()
