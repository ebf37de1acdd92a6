"""Measured time and memory, energy: columns for module and op rows, JSON round trip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypedDict, cast

from torchgauge.facts.figures import ENERGY, INFERENCE, MODULES, OPS, PROFILE, members_known
from torchgauge.facts.schema import Count

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Document, EnergyFigures, Measurements
    from torchgauge.facts.view import View

# The conditions under which figures of time are known.
TIMED = (INFERENCE, PROFILE)


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One profiled run of `duration_ns`, as rows of whole numbers; times are nanoseconds since its start, names are
    indices into `names`, and an op is the index of a static one, -1 where there is none.

    `modules`: start, duration, path, thread. `calls`: start, duration, name, thread, op. `kernels`: start, duration,
    name, stream, op. `memory`: time, bytes given (negative: taken back), whether on the device (0 or 1).
    """

    duration_ns: Count
    names: tuple[str, ...]
    modules: tuple[tuple[int, int, int, int], ...] = ()
    calls: tuple[tuple[int, int, int, int, int], ...] = ()
    kernels: tuple[tuple[int, int, int, int, int], ...] = ()
    memory: tuple[tuple[int, int, int], ...] = ()


class MeasuredModule(TypedDict, total=False):
    """The measured figures of a module; `self_time_s` is without the modules below it."""

    time_s: float
    self_time_s: float
    time_share: float | None


class MeasuredOp(TypedDict, total=False):
    """The measured figures of an op. `roof_share` is the least time that the device needs over the time taken."""

    time_s: float
    cpu_time_s: float
    kernels: list[str]
    flops_per_s: float | None
    bytes_per_s: float | None
    roof_share: float | None
    bound: str | None


class RowEnergy(TypedDict, total=False):
    """The joules of a module or an op: measured, or estimated with a range."""

    energy_j: float | None
    estimated_energy_j: float | None
    estimated_energy_low_j: float | None
    estimated_energy_high_j: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of real runs. `figures` is the document's `measurements`; `modules` are by path, `ops` by index;
    `trace` is one profiled run, None where none was kept."""

    figures: Measurements
    modules: Mapping[str, MeasuredModule] = field(default_factory=dict)
    ops: Mapping[int, MeasuredOp] = field(default_factory=dict)
    trace: TraceRecord | None = None


def blank_measurements() -> Measurements:
    """`measurements` before anything is measured: every member is there, null until it is known."""
    return {
        "failure": None, "latency": None, "memory": None, "unexplained_s": None, "threads": None, "system": None,
        "counters": None, "sweep": [], "notes": [],
    }  # fmt: skip


def measured_from_document(document: Document) -> Measured | None:
    figures = document.get("measurements")
    if figures is None:
        return None
    return Measured(
        figures=figures,
        modules=members_known(document["modules"], "path", MODULES, *TIMED),
        ops=members_known(document["ops"], "index", OPS, *TIMED),
        trace=document.get("trace"),
    )


@dataclass(frozen=True, slots=True)
class EnergyFacts:
    """The energy of a run. `figures` is the document's `energy`; `modules` are by path, `ops` by index."""

    figures: EnergyFigures
    modules: Mapping[str, RowEnergy] = field(default_factory=dict)
    ops: Mapping[int, RowEnergy] = field(default_factory=dict)


UNAVAILABLE: Final = "unavailable"


def energy_from_document(document: Document) -> EnergyFacts | None:
    figures = document.get("energy")
    if figures is None:
        return None
    return EnergyFacts(
        figures=figures,
        modules=members_known(document["modules"], "path", MODULES, ENERGY),
        ops=members_known(document["ops"], "index", OPS, ENERGY),
    )


def measurements_of(view: View) -> Measurements:
    """The measurements with the types of the JSON document; empty if nothing was measured."""
    return cast("Measurements", view.measurements or {})


def energy_of(view: View) -> EnergyFigures | None:
    return cast("EnergyFigures | None", view.energy)
