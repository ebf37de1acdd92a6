"""What is read first: what the model is, the figures that matter, and what to beware of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torchgauge.facts import View
from torchgauge.report.content.notes import note_texts
from torchgauge.report.content.ops import coverage
from torchgauge.report.content.summary import input_facts, model_kind, origin_facts, run_text
from torchgauge.report.options import Options
from torchgauge.report.page.parts.cards import cards
from torchgauge.report.page.payload import part
from torchgauge.units import format_exact, format_percent


@part("overview")
def overview(view: View, options: Options) -> dict[str, Any]:
    capture, kind = view.capture, model_kind(view)
    return {
        "name": capture.target.name or kind,
        "kind": kind,
        "run": run_text(view),
        "facts": [*input_facts(view), *origin_facts(view)],
        "cards": [asdict(card) for card in cards(view)],
        "warnings": warnings(view),
        "created": capture.created,
        "version": capture.version,
    }


def warnings(view: View) -> list[str]:
    texts = note_texts(view)
    if view.capture.has_code and (uncounted := coverage(view)).uncounted:
        names = ", ".join(entry.op for entry in uncounted.uncounted_ops[:6])
        texts.append(
            f"Without a formula: {format_percent(uncounted.ops_share)} of the ops, which move "
            f"{format_percent(uncounted.bytes_share)} of the bytes; their MACs and FLOPs are missing: {names}"
        )
    figures: Mapping[str, Any] = view.measurements or {}
    if figures.get("failure"):
        texts.append(f"The measurement ended early: {figures['failure']}")
    texts += map(str, figures.get("notes") or ())
    failures = view.capture.statistics.failures if view.capture.statistics else ()
    if failures:
        names = ", ".join(name for name, _ in failures[:6])
        texts.append(f"{format_exact(len(failures))} tensors could not be read: {names}")
    return texts
