"""The registry of formats: how each is recognised by its content, and how it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torchgauge.checkpoint.byte_source import ByteSource
from torchgauge.checkpoint.index import Index
from torchgauge.checkpoint.zip_archive import ZipArchive
from torchgauge.progress import Progress

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Format(Generic[Subject]):
    """`opens` takes the subject and a progress callback; `matches` must not raise for other formats."""

    name: str
    matches: Callable[[Subject], bool]
    opens: Callable[[Subject, Progress], Index]


FILES: dict[str, Format[ByteSource]] = {}
ARCHIVES: dict[str, Format[ZipArchive]] = {}
FOLDERS: dict[str, Format[str]] = {}

Opener = Callable[[Subject, Progress], Index]


def opens(
    formats: dict[str, Format[Subject]], name: str, matches: Callable[[Subject], bool]
) -> Callable[[Opener[Subject]], Opener[Subject]]:
    """Register the decorated function to open the format `name` in one of the three tables."""

    def register(function: Opener[Subject]) -> Opener[Subject]:
        if name in formats:
            raise ValueError(f"format {name!r} is already registered")
        formats[name] = Format(name, matches, function)
        return function

    return register


def find_format(formats: dict[str, Format[Subject]], subject: Subject) -> Format[Subject] | None:
    return next((entry for entry in formats.values() if entry.matches(subject)), None)


def silent(done: int, total: int, name: str) -> None:
    """The default progress callback."""
