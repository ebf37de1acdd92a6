"""The known formats: how each is recognised by its content, and how it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from torchgauge.checkpoint.byte_source import ByteSource
from torchgauge.checkpoint.index import Index
from torchgauge.checkpoint.zip_archive import ZipArchive
from torchgauge.progress import Progress
from torchgauge.registry import Registry

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Format(Generic[Subject]):
    """`opens` takes the subject and a progress callback; `matches` must not raise for other formats."""

    name: str
    matches: Callable[[Subject], bool]
    opens: Callable[[Subject, Progress], Index]


Formats = Registry[str, Format[Subject]]
FILES: Formats[ByteSource] = Registry("format")
ARCHIVES: Formats[ZipArchive] = Registry("format")
FOLDERS: Formats[str] = Registry("format")

Opener = Callable[[Subject, Progress], Index]


def opens(
    formats: Formats[Subject], name: str, matches: Callable[[Subject], bool]
) -> Callable[[Opener[Subject]], Opener[Subject]]:
    """Register the decorated function to open the format `name` in one of the three tables."""
    return formats.register_as(partial(Format, name, matches), name)


def find_format(formats: Formats[Subject], subject: Subject) -> Format[Subject] | None:
    return next((entry for entry in formats.values() if entry.matches(subject)), None)


def silent(done: int, total: int, name: str) -> None:
    """The default progress callback."""
