"""Measured memory in the text report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchgauge.facts import View
from torchgauge.report.bars import spark
from torchgauge.report.escape import visible
from torchgauge.report.headline import fact_lines, padded
from torchgauge.report.layout import Line, Span, cell_width
from torchgauge.report.measurements import measured_member
from torchgauge.report.memory_use import Categories, MemoryPeak, at_peak, find_memory_peak, moments
from torchgauge.report.options import Options
from torchgauge.report.origin import Fact
from torchgauge.report.sections import heading
from torchgauge.units import format_bytes, format_count, format_exact, format_percent


def memory(view: View, options: Options) -> list[Line]:
    figures = measured_member(view, "memory")
    if not figures:
        return []
    facts = [*_peak_facts(view), *_system_facts(figures), *_pattern_facts(figures)]
    return [heading("Measured memory"), *fact_lines(facts, options.width), *over_time(view, options)]


def _peak_facts(view: View) -> list[Fact]:
    peak, held = find_memory_peak(view), at_peak(view)
    facts: list[Fact] = []
    if peak is not None:
        facts.append(("Allocated at most", format_bytes(peak.measured_bytes), _peak_note(peak)))
    if held is not None:
        facts.append(("Held then", "", _category_text(held)))
    state = measured_member(view, "memory").get("optimizer_state_bytes")
    if state:
        note = "kept from step to step, not allocated by a run"
        facts.append(("Optimizer state", format_bytes(state), note))
    return facts


def _peak_note(peak: MemoryPeak) -> str:
    share = peak.difference_share
    sign = "+" if share is not None and share >= 0 else ""
    difference = "" if share is None else f", a difference of {sign}{format_percent(share)}"
    return f"by one run; predicted {format_bytes(peak.predicted_bytes)}{difference}"


def _category_text(held: Categories) -> str:
    parts = {
        "parameters": held.parameters_bytes,
        "buffers": held.buffers_bytes,
        "inputs": held.inputs_bytes,
        "activations": held.activations_bytes,
        **({"gradients": held.gradients_bytes} if held.gradients_bytes else {}),
        "workspace": held.workspace_bytes,
    }
    place = f"{held.op.op} (op {held.op.index}) in {held.op.module or 'the model itself'}"
    return f"{', '.join(f'{name} {format_bytes(size)}' for name, size in parts.items())}; at {visible(place)}"


def _system_facts(figures: Mapping[str, Any]) -> list[Fact]:
    facts: list[Fact] = []
    if figures.get("rss_peak_bytes") is not None:
        note = f"it grew by {format_bytes(figures['rss_growth_bytes'])} over a run; {visible(figures['rss_method'])}"
        facts.append(("Process", format_bytes(figures["rss_peak_bytes"]), note))
    if figures.get("cuda_allocated_peak_bytes") is not None:
        before = f"in tensors at most; {format_bytes(figures['cuda_before_bytes'])} before the run"
        facts.append(("CUDA allocated", format_bytes(figures["cuda_allocated_peak_bytes"]), before))
        facts.append(("CUDA reserved", format_bytes(figures["cuda_reserved_peak_bytes"]), "taken from the driver"))
    return facts


def _pattern_facts(figures: Mapping[str, Any]) -> list[Fact]:
    pattern = figures.get("pattern")
    if not pattern or not pattern.get("allocations"):
        return []
    reuse = pattern.get("reuse")
    note = (
        f"{format_bytes(pattern['total_bytes'])} in all, median {format_bytes(pattern['median_bytes'])}, "
        f"largest {format_bytes(pattern['largest_bytes'])}"
    )
    note += f"; each byte of the peak used {format_count(reuse)} times" if reuse else ""
    pieces = pattern.get("fragmentation")
    note += f"; {format_percent(pieces)} of the reserved memory lay in free pieces" if pieces is not None else ""
    return [("Allocations", format_exact(pattern["allocations"]), note)]


def over_time(view: View, options: Options) -> list[Line]:
    """Lines on one scale: what was held after each op, and what it held besides while it worked."""
    run = moments(view)
    names = {"activations": [m.activations_bytes for m in run], "workspace": [m.workspace_bytes for m in run]}
    gradients = [moment.gradients_bytes for moment in run]
    names |= {"gradients": gradients} if any(gradients) else {}
    top = max((max(values, default=0) for values in names.values()), default=0)
    if not top:
        return []
    scale = f" {format_bytes(top)} at most"
    lead = max(map(cell_width, names)) + 2
    width = max(options.width - lead - cell_width(scale), 8)
    lines: list[Line] = [(Span(f"Over the run, op by op ({format_exact(len(run))} ops)", "dim"),)]
    for name, values in names.items():
        remark = scale if max(values) == top else ""
        drawn = padded(spark(values, top, width), min(len(values), width))
        lines.append((Span(padded(name, lead), "dim"), Span(drawn, "figure"), Span(remark, "dim")))
    return lines
