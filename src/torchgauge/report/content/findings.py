"""What a reader must know before any figure; it stands above the title of a report, and on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchgauge.facts import View
from torchgauge.report.model import Section, Text, Topic
from torchgauge.report.options import Options
from torchgauge.units import format_names

_NAMED_IMPORTS = 3


class Finding(NamedTuple):
    """A finding as a tile (`label`, `value`, `note`) and as a sentence. An unsafe file fails a check."""

    label: str
    value: str
    note: str
    text: str
    is_unsafe: bool = False


def findings(view: View) -> list[Finding]:
    """The most severe first."""
    return [*_dangerous_pickle(view)]


def sections(view: View, options: Options) -> Iterator[Section]:
    if found := findings(view):
        blocks = tuple(Text(one.text, is_alarm=True) for one in found)
        yield Section("", blocks, Topic.FINDINGS, page_part="overview", name="findings")


def _dangerous_pickle(view: View) -> Iterator[Finding]:
    stored = view.capture.stored
    dangerous = [entry for entry in stored.imports if entry.verdict == "dangerous"] if stored else []
    if stored is None or not dangerous:
        return
    called = [entry.name for entry in dangerous if entry.called]
    names = format_names(called or [entry.name for entry in dangerous], _NAMED_IMPORTS)
    if stored.executed:
        text = f"Dangerous pickle: unpickling this file {'called' if called else 'imported'} {names}"
    else:
        text = f"Dangerous pickle: do not load this file; unpickling it would {'call' if called else 'import'} {names}"
    yield Finding("Pickle", "dangerous", f"{'calls' if called else 'imports'} {names}", text, is_unsafe=True)
