"""What is found by reading weights and by real runs, joined to the rows of the document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WeightStatistics:
    """What the values of the weights tell: by tensor name the figures of its row, and figures of the whole.

    `failures` are tensors that could not be read, with the reason; `scan` says how the values were read; `against` is
    the comparison with another checkpoint."""

    tensors: Mapping[str, Mapping[str, Any]]
    summary: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[tuple[str, str], ...] = ()
    scan: Mapping[str, Any] = field(default_factory=dict)
    against: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One profiled run of `duration_ns`, as rows of whole numbers; times are nanoseconds since its start, names are
    indices into `names`, and an op is the index of a static one, -1 where there is none.

    `modules`: start, duration, path, thread. `calls`: start, duration, name, thread, op. `kernels`: start, duration,
    name, stream, op. `memory`: time, bytes given (negative: taken back), whether on the device (0 or 1).
    """

    duration_ns: int
    names: tuple[str, ...]
    modules: tuple[tuple[int, int, int, int], ...] = ()
    calls: tuple[tuple[int, int, int, int, int], ...] = ()
    kernels: tuple[tuple[int, int, int, int, int], ...] = ()
    memory: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """What real runs took. `figures` is the document's `measurements`; `modules` (by path) and `ops` (by index) are the
    measured members of their rows; `trace` is one profiled run, None where none was kept."""

    figures: Mapping[str, Any]
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ops: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    trace: TraceRecord | None = None


@dataclass(frozen=True, slots=True)
class EnergyFacts:
    """What a run consumes. `figures` is the document's `energy`; `modules` (by path) and `ops` (by index) are the
    members of their rows: `energy_j` measured, `estimated_energy_j` estimated with its range."""

    figures: Mapping[str, Any]
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ops: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
