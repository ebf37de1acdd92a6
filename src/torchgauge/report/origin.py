"""Where the figures come from beside a run: the family of the model, and the files that hold it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from torchgauge.facts import View
from torchgauge.report.escape import visible
from torchgauge.report.training_facts import Fact as Fact
from torchgauge.report.training_facts import adapter_facts, training_facts
from torchgauge.units import format_bytes, format_exact

_LONGEST = 80  # of a value in the metadata


def origin_facts(view: View) -> list[Fact]:
    facts: list[Fact] = []
    family, complexity = view.architecture.family, view.architecture.complexity
    if family:
        kind = f"{family}, {complexity} complexity" if complexity else family
        known = hyperparameter_text(view.architecture.hyperparameters)
        facts.append(("Family", "", visible(f"{kind}: {known}" if known else kind)))
    target = view.capture.target
    if view.capture.stored is not None and target.format:
        facts.append(("Format", "", f"{visible(target.format)}: {_files_text(target.files)}"))
    if target.metadata:
        facts.append(("Archive", "", _metadata_text(target.metadata)))
    return [*facts, *adapter_facts(view.capture.adapter), *training_facts(view.capture.training)]


def _metadata_text(metadata: Mapping[str, str]) -> str:
    """`file version 3, byteorder little, extra files notes.txt`: what a reader may want, without the identity."""
    shown = {name: value for name, value in metadata.items() if name != "serialization_id"}
    return ", ".join(f"{visible(name.replace('_', ' '))} {visible(_short(value))}" for name, value in shown.items())


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def hyperparameter_text(values: dict[str, Any]) -> str:
    """`depth 12, width 768, heads 12?`: a question mark for what is assumed."""
    assumed = values.get("assumed", [])
    return ", ".join(
        f"{name.replace('_', ' ')} {_value(value)}{'?' if name in assumed else ''}"
        for name, value in values.items()
        if name != "assumed"
    )


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "+".join(str(item) for item in value) if isinstance(value, list) else str(value)


def _files_text(files: tuple[str, ...]) -> str:
    first = visible(PurePath(files[0]).name) if files else ""
    return first if len(files) < 2 else f"{first} and {len(files) - 1:,} more files"


def stored_facts(view: View) -> list[Fact]:
    """What the files hold; nothing for a live module."""
    figures = view.totals
    if figures.stored_bytes is None:
        return []
    facts: list[Fact] = [("Stored", format_bytes(figures.stored_bytes), _stored_note(view))]
    if figures.logical_params != figures.params:
        facts.append(("Logical parameters", format_exact(figures.logical_params), "packed values unpacked"))
    if figures.optimizer_elements:
        facts.append(("Optimizer state", format_exact(figures.optimizer_elements), "elements"))
    return facts


def _stored_note(view: View) -> str:
    tensors = view.capture.stored.tensors if view.capture.stored else ()
    tied = sum(tensor.shared_with is not None for tensor in tensors)
    note = f"{format_exact(view.totals.stored_elements)} elements in {format_exact(len(tensors))} tensors"
    return f"{note}, {format_exact(tied)} of them under a second name" if tied else note
