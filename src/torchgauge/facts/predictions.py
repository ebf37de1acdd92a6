"""What is predicted of a run on a device: memory and time as `fit` and `forecast` give them, and as JSON has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torchgauge.facts.figures import MODULES, OPS, PREDICTION, Members, members_known

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Document

Verdict = Literal["fits", "does not fit", "too close"]
Bound = Literal["host", "compute", "memory", "launch"]


@dataclass(frozen=True)
class Bounds:
    low: int
    high: int


@dataclass(frozen=True)
class FitFacts:
    """The memory of a run on a device, in bytes; an analysis leaves out the course of a step."""

    device: str
    title: str
    target: str
    mode: str
    execution: str
    batch: int | None
    seq: int | None
    verdict: Verdict
    capacity_bytes: int
    capacity_source: str
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    used_bytes: int
    required_bytes: int
    context_bytes: int
    before_bytes: int
    bounds: dict[str, Bounds]
    by_class: dict[str, int]
    peak: dict[str, Any]
    holders: list[dict[str, Any]]
    loss: str | None
    warnings: list[str]
    timeline: list[dict[str, Any]] = field(default_factory=list)
    course: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ForecastFacts:
    """Time and energy of a run on a device with 90 % intervals, its ops and its modules."""

    device: str
    title: str
    target: str
    mode: str
    execution: str
    batch: int | None
    seq: int | None
    time_s: float
    low_s: float
    high_s: float
    energy_j: float | None
    energy_low_j: float | None
    energy_high_j: float | None
    device_s: float
    host_s: float
    bound: Bound
    fit: Verdict | None
    used_bytes: int | None
    price_per_hour: float | None
    sources: dict[str, float]
    host_source: str
    ops: list[dict[str, Any]] = field(repr=False)
    modules: list[dict[str, Any]] = field(repr=False)
    warnings: list[str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class PredictedTimes:
    """Of an analysis, for the first device whose time was predicted: the members of its rows, `predicted_time_s` with
    its interval among them; of modules by path, of ops by index."""

    modules: Mapping[str, Members]
    ops: Mapping[int, Members]


def predicted_from_document(document: Document) -> PredictedTimes | None:
    if not document.get("forecast"):
        return None
    return PredictedTimes(
        modules={
            row["path"]: found for row in document["modules"] if (found := members_known(row, MODULES, PREDICTION))
        },
        ops={row["index"]: found for row in document["ops"] if (found := members_known(row, OPS, PREDICTION))},
    )
