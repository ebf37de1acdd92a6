"""What rules look at: the facts of a capture in forms that are quick to ask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torchgauge.advise.flow import Flow
from torchgauge.advise.record import Gain
from torchgauge.hardware import Peaks, peaks_of
from torchgauge.records import Capture, ModuleRecord, OpRecord, ParamRecord
from torchgauge.view import Row, View


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the whole model that some ops are: of the measured time, else of the bytes moved."""

    quantity: str
    value: float

    def one_pass(self, spared: float, passes: int) -> Gain:
        """One kernel in place of several; `spared` of the bytes they move need not be."""
        # In cache, or where a function like tanh takes the time, passes cost little: on a CPU 9 to 76 % were saved.
        least = 0.1 if self.quantity == "time_s" else 0.5
        return self.gain(least * spared, spared, f"one pass over memory in place of {passes}")

    def gain(self, low: float, high: float, how: str) -> Gain:
        """What is saved where `low` to `high` of this part can be."""
        of = "measured op time" if self.quantity == "time_s" else "bytes the model moves"
        return Gain(self.quantity, self.value * low, self.value * high, f"{how}; as a share of the {of}")


@dataclass(frozen=True, slots=True)
class Machine:
    """What the capture does not hold: the peaks of its device, torch's switches when it was made; None: not known."""

    peaks: Peaks | None = None
    matmul_tf32: bool | None = None
    convolution_tf32: bool | None = None


class Evidence:
    """Everything is computed when it is first asked for. `view` is a view of the capture that is there already."""

    def __init__(self, capture: Capture, view: View | None = None, machine: Machine | None = None) -> None:
        self.capture = capture
        self.view = View(capture) if view is None else view
        self.machine = Machine() if machine is None else machine

    @property
    def is_train(self) -> bool:
        return self.capture.run.train

    @property
    def device(self) -> str:
        """Torch's type of the device: cpu, cuda, …"""
        return self.capture.run.device.partition(":")[0]

    @property
    def is_cuda(self) -> bool:
        return self.device == "cuda"

    @cached_property
    def forward(self) -> tuple[OpRecord, ...]:
        """The ops of the forward pass, in order."""
        return tuple(op for op in self.capture.ops if op.phase == "forward")

    @cached_property
    def by_index(self) -> Mapping[int, OpRecord]:
        return {op.index: op for op in self.capture.ops}

    @cached_property
    def flow(self) -> Flow:
        return Flow(self.forward, self.params)

    @cached_property
    def modules(self) -> Mapping[str, ModuleRecord]:
        return {record.path: record for record in self.capture.modules}

    @cached_property
    def params(self) -> Mapping[str, ParamRecord]:
        return {param.name: param for param in self.capture.params}

    @cached_property
    def weight_rows(self) -> Mapping[str, Row]:
        """By name, with the figures of the values where these were read."""
        return {row.name: row for row in self.view.weights}

    @property
    def totals(self) -> Row:
        return self.view.totals

    @cached_property
    def figures(self) -> Mapping[str, Any]:
        """The document's `measurements`; empty where nothing was measured."""
        return self.capture.measured.figures if self.capture.measured else {}

    @property
    def time_s(self) -> float | None:
        """Of the whole model, measured."""
        time: float | None = self.totals.time_s
        return time

    @cached_property
    def op_times(self) -> Mapping[int, float]:
        """Measured seconds by the index of the op; empty without a profile."""
        rows = self.capture.measured.ops if self.capture.measured else {}
        return {index: row["time_s"] for index, row in rows.items() if row.get("time_s") is not None}

    @cached_property
    def peaks(self) -> Peaks | None:
        """What the device can do at most; None where nobody knows."""
        if self.machine.peaks is None and self.device == "cpu":
            return peaks_of(self.capture.environment.cpu, "cpu")
        return self.machine.peaks

    @cached_property
    def bytes_moved(self) -> int:
        """Of all ops, backward and optimizer included."""
        return sum(map(moved, self.capture.ops))

    def is_released(self, op: OpRecord, reader: OpRecord) -> bool:
        """Whether memory as large as what `op` made is given back right behind `reader`: then no other op reads it."""
        following = self.by_index.get(reader.index + 1)
        if following is None:
            return False
        released = reader.live_bytes + following.signature.activation_bytes - following.live_bytes
        return released >= op.signature.activation_bytes > 0

    def share(self, ops: Iterable[OpRecord]) -> Share:
        chosen = list(ops)
        whole = sum(self.op_times.values())
        if whole and any(op.index in self.op_times for op in chosen):
            return Share("time_s", min(sum(self.op_times.get(op.index, 0.0) for op in chosen) / whole, 1.0))
        return Share("bytes_moved", min(sum(map(moved, chosen)) / max(self.bytes_moved, 1), 1.0))


def moved(op: OpRecord) -> int:
    """Bytes that an op reads and writes."""
    return op.cost.bytes_read + op.cost.bytes_written
