"""Measured memory, compared with the static prediction, by purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torchgauge.facts import OpRecord, View
from torchgauge.facts.measurements import measurements_of
from torchgauge.facts.peak_memory import memory_at_peak, memory_over_run
from torchgauge.report.model import Block, Course, Fact, Facts, Section, Text, Topic
from torchgauge.report.options import Options
from torchgauge.report.ranking import share_of
from torchgauge.units import format_bytes, format_count, format_exact, format_percent


def sections(view: View, options: Options) -> Iterator[Section]:
    figures = measurements_of(view).get("memory")
    if not figures:
        return
    facts = [*memory_facts(view)]
    blocks: list[Block] = [Facts(facts)] if facts else []
    run = moments(view)
    # On one scale: the memory held after each op, and the workspace that it needed while it ran.
    lines = {"activations": [m.activations_bytes for m in run], "workspace": [m.workspace_bytes for m in run]}
    lines["gradients"] = [moment.gradients_bytes for moment in run]
    top = max((max(values, default=0) for values in lines.values()), default=0)
    if top:
        drawn = tuple(
            (name, tuple(values), f"{format_bytes(top)} at most" if max(values) == top else "")
            for name, values in lines.items()
            if name != "gradients" or any(values)
        )
        blocks += [Text(f"Over the run, op by op ({format_exact(len(run))} ops)", is_remark=True), Course(drawn, top)]
    yield Section("Measured memory", tuple(blocks), Topic.MEMORY, page_part="memory")


def memory_facts(view: View) -> Iterator[Fact]:
    """The measured peak, what was held then, and the memory of the process and of the device."""
    peak, held = find_memory_peak(view), at_peak(view)
    if peak is not None:
        share = peak.difference_share
        sign = "+" if share is not None and share >= 0 else ""
        difference = "" if share is None else f", a difference of {sign}{format_percent(share)}"
        note = f"by one run; predicted {format_bytes(peak.predicted_bytes)}{difference}"
        yield "Allocated at most", format_bytes(peak.measured_bytes), note
    if held is not None:
        shown = {name: size for name, size in held.parts.items() if size or name != "gradients"}
        sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in shown.items())
        yield "At the peak", "", f"{sizes}; at {op_place(held.op)}"
    figures = measurements_of(view).get("memory")
    if not figures:
        return
    if state := figures.get("optimizer_state_bytes"):
        yield "Optimizer state", format_bytes(state), "kept from step to step, not allocated by a run"
    if figures.get("rss_peak_bytes") is not None:
        note = f"it grew by {format_bytes(figures['rss_growth_bytes'])} over a run; {figures['rss_method']}"
        yield "Process", format_bytes(figures["rss_peak_bytes"]), note
    if figures.get("cuda_allocated_peak_bytes") is not None:
        before = f"in tensors at most; {format_bytes(figures['cuda_before_bytes'])} before the run"
        yield "CUDA allocated", format_bytes(figures["cuda_allocated_peak_bytes"]), before
        yield "CUDA reserved", format_bytes(figures["cuda_reserved_peak_bytes"]), "taken from the driver"
    pattern = figures.get("pattern")
    if not pattern or not pattern.get("allocations"):
        return
    total, median = format_bytes(pattern["total_bytes"]), format_bytes(pattern["median_bytes"])
    note = f"{total} in all, median {median}, largest {format_bytes(pattern['largest_bytes'])}"
    if pattern.get("reuse"):
        note += f"; each byte of the peak used {format_count(pattern['reuse'])} times"
    if pattern.get("fragmentation") is not None:
        note += f"; {format_percent(pattern['fragmentation'])} of the reserved memory was in free blocks"
    yield "Allocations", format_exact(pattern["allocations"]), note


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The most that a run allocates, beyond parameters, buffers, inputs and optimizer state: measured, and predicted
    from the shapes alone."""

    measured_bytes: int
    predicted_bytes: int

    @property
    def difference_share(self) -> float | None:
        """The difference as a share of the prediction."""
        difference = self.measured_bytes - self.predicted_bytes
        return share_of(difference, self.predicted_bytes) if self.predicted_bytes else None


class AtPeak(NamedTuple):
    """The op that reached the measured peak, and the bytes that were held then by purpose."""

    op: OpRecord
    parts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Moment:
    """One op: bytes of activations before or after it, whichever are more, bytes of the parameters' gradients (known
    from the shapes: an allocator does not distinguish them), and bytes it held in addition while it ran."""

    op: int
    activations_bytes: int
    gradients_bytes: int
    workspace_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.activations_bytes + self.gradients_bytes + self.workspace_bytes


def find_memory_peak(view: View) -> MemoryPeak | None:
    figures = measurements_of(view).get("memory")
    measured_bytes = figures.get("allocated_peak_bytes") if figures else None
    if measured_bytes is None:
        return None
    # The inputs and the optimizer's state are there before the run.
    use = memory_at_peak(view.capture)
    live = use.activations + use.gradients if use else view.totals.peak_activation_bytes
    return MemoryPeak(measured_bytes, max(live - view.capture.input_bytes, 0))


def moments(view: View) -> list[Moment]:
    """Over the run, by op."""
    memory = measurements_of(view).get("memory") or {}
    rows = memory.get("timeline") or []
    gradients = {use.op.index: use.gradients for use in memory_over_run(view.capture) if use.op} if rows else {}
    before = [0, *(row["held_bytes"] for row in rows)]
    found = []
    for last, row in zip(before, rows, strict=False):
        held, kept = max(last, row["held_bytes"]), gradients.get(row["op"], 0)
        found.append(Moment(row["op"], max(held - kept, 0), min(kept, held), row["workspace_bytes"]))
    return found


def at_peak(view: View) -> AtPeak | None:
    """The op whose own work held the most."""
    ops = {op.index: op for op in view.capture.ops}
    known = [moment for moment in moments(view) if moment.op in ops]
    if not known:
        return None
    top = max(known, key=lambda moment: moment.total_bytes)
    parts = {
        "parameters": view.totals.param_bytes,
        "buffers": view.totals.buffer_bytes,
        "inputs": view.capture.input_bytes,
        "activations": top.activations_bytes,
        "gradients": top.gradients_bytes,
        "workspace": top.workspace_bytes,
    }
    return AtPeak(ops[top.op], parts)


@dataclass(frozen=True, slots=True)
class Peak:
    """`op` is None where the inputs alone are the peak."""

    activation_bytes: int
    op: OpRecord | None

    @property
    def place(self) -> str:
        return "the inputs" if self.op is None else op_place(self.op)


def op_place(op: OpRecord) -> str:
    return f"{op.op} (op {op.index}) in {op.module or 'the model itself'}"


def find_peak(view: View) -> Peak:
    op = max(view.capture.ops, key=lambda op: op.live_bytes, default=None)
    total = view.totals.peak_activation_bytes
    return Peak(total, op if op is not None and op.live_bytes == total else None)
