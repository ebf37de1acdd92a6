"""What a scan has finished, line by line, so that an interrupted one can go on where it stopped.

Lines are handed to the system as they are written: a killed process loses at most the one it was writing. Each begins
with a checksum: one that was torn or edited, or that belongs to another scan, is read again from the files.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Self

from torchgauge import __version__
from torchgauge.cache import append_file, journal_folder, remove_file
from torchgauge.weights.reader import Stamp
from torchgauge.weights.tally import Tally, from_json, to_json
from torchgauge.weights.tensors import Finished

# What takes less is sooner read again than written down.
PATIENCE_S = 2.0
KEPT_S = 30 * 86400


def journal_path(path: str, stamps: dict[str, Stamp], options: Iterable[Any]) -> Path:
    """One for each state of the files, set of options and version: what has changed is scanned anew."""
    files = sorted((os.path.realpath(file), stamp.size, stamp.mtime_ns) for file, stamp in stamps.items())
    facts = (os.path.realpath(path), files, list(options), __version__)
    return journal_folder() / f"{blake2b(repr(facts).encode(), digest_size=16).hexdigest()}.jsonl"


class Journal:
    """`path` None keeps none. A folder that cannot be written to costs only the way to resume."""

    def __init__(self, path: Path | None, *, resume: bool = False) -> None:
        self._path = path
        self._scan = b"" if path is None else os.fsencode(path.stem)
        self._began = time.monotonic()
        self._finished: dict[str, int] = {}
        self._begun: dict[str, int] = {}
        self._has_written = False
        self._reader = None if path is None else _open_leftover(path, resume=resume)
        if self._reader is not None:
            self._index(self._reader)
        self._is_eager = bool(self._finished or self._begun)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    @property
    def size(self) -> int:
        """How many tensors it knows something of."""
        return len(self._finished.keys() | self._begun.keys())

    def has_finished(self, name: str) -> bool:
        return name in self._finished

    def finished(self, name: str) -> Finished | None:
        line = self._line(self._finished.get(name))
        return None if line is None else Finished(name, line["row"], from_json(line["tally"]), line["fingerprint"])

    def begun(self, name: str) -> tuple[int, Tally] | None:
        """The pieces of a large tensor that have been tallied, and their tally."""
        line = self._line(self._begun.get(name))
        return None if line is None else (line["pieces"], from_json(line["tally"]))

    def note_finished(self, found: Finished) -> None:
        if found.tally is not None and found.name not in self._finished and self._is_due():
            facts = {"name": found.name, "row": found.row, "fingerprint": found.fingerprint}
            self._write(facts | {"tally": to_json(found.tally)})

    def note_begun(self, name: str, pieces: int, tally: Tally) -> None:
        if self._is_due():
            self._write({"name": name, "pieces": pieces, "tally": to_json(tally)})

    def discard(self) -> None:
        """The scan is complete."""
        self.__exit__()
        if self._path is not None:
            with suppress(OSError):
                remove_file(self._path)

    def _is_due(self) -> bool:
        return self._path is not None and (self._is_eager or time.monotonic() - self._began >= PATIENCE_S)

    def _write(self, line: dict[str, Any]) -> None:
        assert self._path is not None
        try:
            text = json.dumps(line).encode()
            # The last line of an interrupted scan may be torn.
            start = b"" if self._has_written or not self._path.exists() else b"\n"
            append_file(self._path, start + self._checksum(text) + b" " + text + b"\n")
            self._has_written = True
        except OSError:
            self._path = None  # no room left, or no folder to write to: the scan itself needs none

    def _index(self, reader: BinaryIO) -> None:
        """The place of each tensor's last line."""
        at = 0
        for text in iter(reader.readline, b""):
            line = self._parse(text)
            if line is not None:
                places = self._finished if "row" in line else self._begun
                places[line["name"]] = at
            at += len(text)

    def _line(self, place: int | None) -> dict[str, Any] | None:
        if self._reader is None or place is None:
            return None
        self._reader.seek(place)
        return self._parse(self._reader.readline())

    def _parse(self, text: bytes) -> dict[str, Any] | None:
        checksum, _, content = text.rstrip(b"\n").partition(b" ")
        if checksum != self._checksum(content):
            return None
        line: dict[str, Any] = json.loads(content)
        return line

    def _checksum(self, content: bytes) -> bytes:
        """Of the line and of the scan that it belongs to, which the journal is named after."""
        return blake2b(self._scan + content, digest_size=16).hexdigest().encode()


def _open_leftover(path: Path, *, resume: bool) -> BinaryIO | None:
    """What an interrupted scan has left, if it is to be continued; else it is removed."""
    with suppress(OSError):
        _remove_old(path.parent)
        if resume:
            return path.open("rb")
        remove_file(path)
    return None


def _remove_old(folder: Path) -> None:
    """Journals of scans that nobody went on with."""
    for leftover in folder.glob("*.jsonl"):
        if time.time() - leftover.stat().st_mtime > KEPT_S:
            remove_file(leftover)
