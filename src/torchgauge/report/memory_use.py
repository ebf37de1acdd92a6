"""Measured memory beside the prediction of the static analysis, and what it was made of."""

from __future__ import annotations

from dataclasses import dataclass

from torchgauge.facts import OpRecord, View
from torchgauge.facts.peak_memory import memory_at_peak, memory_over_run
from torchgauge.report.measurements import measured_member, measured_rows
from torchgauge.report.ranking import share_of


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """What a run allocates at most beyond what is there before it (parameters, buffers, inputs, optimizer state):
    measured, and predicted from the shapes alone."""

    measured_bytes: int
    predicted_bytes: int

    @property
    def difference_share(self) -> float | None:
        """Of the prediction."""
        difference = self.measured_bytes - self.predicted_bytes
        return share_of(difference, self.predicted_bytes) if self.predicted_bytes else None


@dataclass(frozen=True, slots=True)
class Categories:
    """What was held at the measured peak, by what it was for; `op` is where the peak was."""

    op: OpRecord
    parameters_bytes: int
    buffers_bytes: int
    inputs_bytes: int
    activations_bytes: int
    gradients_bytes: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class Moment:
    """One op: bytes of activations before or after it, whichever are more, bytes of the parameters' gradients (known
    from the shapes: an allocator does not tell them apart), and bytes it held besides as it worked."""

    op: int
    activations_bytes: int
    gradients_bytes: int
    workspace_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.activations_bytes + self.gradients_bytes + self.workspace_bytes


def find_memory_peak(view: View) -> MemoryPeak | None:
    figures = measured_member(view, "memory")
    if figures.get("allocated_peak_bytes") is None:
        return None
    # The inputs and the optimizer's state are there before the run.
    use = memory_at_peak(view.capture)
    live = use.activations + use.gradients if use else view.totals.peak_activation_bytes
    return MemoryPeak(figures["allocated_peak_bytes"], max(live - view.capture.input_bytes, 0))


def moments(view: View) -> list[Moment]:
    """Over the run, by op."""
    rows = measured_rows(view, "timeline", within="memory")
    gradients = {use.op.index: use.gradients for use in memory_over_run(view.capture) if use.op} if rows else {}
    before = [0, *(row["held_bytes"] for row in rows)]
    found = []
    for last, row in zip(before, rows, strict=False):
        held, kept = max(last, row["held_bytes"]), gradients.get(row["op"], 0)
        found.append(Moment(row["op"], max(held - kept, 0), min(kept, held), row["workspace_bytes"]))
    return found


def at_peak(view: View) -> Categories | None:
    """The op whose own work held the most."""
    ops = {op.index: op for op in view.capture.ops}
    known = [moment for moment in moments(view) if moment.op in ops]
    if not known:
        return None
    top = max(known, key=lambda moment: moment.total_bytes)
    return Categories(
        op=ops[top.op],
        parameters_bytes=view.totals.param_bytes,
        buffers_bytes=view.totals.buffer_bytes,
        inputs_bytes=view.capture.input_bytes,
        activations_bytes=top.activations_bytes,
        gradients_bytes=top.gradients_bytes,
        workspace_bytes=top.workspace_bytes,
    )
