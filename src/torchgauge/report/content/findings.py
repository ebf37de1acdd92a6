"""What a reader must know before any figure; it stands above the title of a report, and on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchgauge.facts import View
from torchgauge.report.model import Section, Text, Topic
from torchgauge.report.options import Options
from torchgauge.units import format_exact, format_names, format_things

_NAMED_IMPORTS = 3
_NAMED_TENSORS = 3


class Finding(NamedTuple):
    """A finding as a tile (`label`, `value`, `note`) and as a sentence. An unsafe file fails a check."""

    label: str
    value: str
    note: str
    text: str
    is_unsafe: bool = False


def findings(view: View) -> list[Finding]:
    """The most severe first."""
    return [*_dangerous_pickle(view), *_truncated(view), *_not_finite(view)]


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


def _truncated(view: View) -> Iterator[Finding]:
    lost, stored = view.capture.run.lost_tensors, view.capture.stored
    if lost and stored is not None:
        share = f"{format_exact(lost)} of {format_things(len(stored.tensors), 'tensor')}"
        text = f"Truncated file: {share} {'is' if lost == 1 else 'are'} missing; download or copy it again"
        yield Finding("File", "truncated", f"{share} missing", text)


def _not_finite(view: View) -> Iterator[Finding]:
    """Of parameters: a mask or a table may hold infinities on purpose."""
    statistics, stored = view.capture.statistics, view.capture.stored
    if statistics is None:
        return
    if stored is not None:
        names = {tensor.name for tensor in stored.tensors if tensor.role == "parameter"}
    else:
        names = {param.name for param in view.capture.params if not param.is_buffer}
    for key, kind in (("nan", "NaN"), ("inf", "infinite values")):
        held = [name for name, row in statistics.tensors.items() if name in names and row.get(key)]
        if held:
            named = format_names(held, _NAMED_TENSORS)
            share = f"{format_exact(len(held))} of {format_things(len(names), 'parameter tensor')}"
            yield Finding("Weights", kind, f"in {share}", f"Unusable weights: {kind} in {share} ({named})")
