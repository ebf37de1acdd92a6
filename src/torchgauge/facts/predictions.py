"""Predictions for a run on a device: memory and time, as records and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Literal, TypedDict

from torchgauge.facts.figures import MODULES, OPS, PREDICTION, members_known

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Document

Verdict = Literal["fits", "does not fit", "too close"]
Bound = Literal["host", "compute", "memory", "launch"]


@dataclass(frozen=True)
class Bounds:
    low: int
    high: int


class MemoryMoment(TypedDict, total=False):
    """Memory while an op of a step runs; before the first op only the bytes are known."""

    index: int
    phase: str
    op: str
    module: str
    allocated_bytes: int
    reserved_bytes: int


class Holder(TypedDict):
    """Bytes that a module holds at the peak."""

    module: str
    bytes: int


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
    peak: MemoryMoment
    holders: list[Holder]
    loss: str | None
    warnings: list[str]
    timeline: list[MemoryMoment] = field(default_factory=list)
    course: dict[str, list[int]] = field(default_factory=dict)


class Remedy(TypedDict):
    """A change and its prediction; `effect` is its side effect, `extra_flops` a share of the FLOPs of a
    sample."""

    name: str
    code: str
    effect: str | None
    extra_flops: float
    used_bytes: int
    saved_bytes: int
    verdict: Verdict


class Suggestions(TypedDict):
    """The largest sizes that fit, and what to change."""

    max_batch: int | None
    max_seq: int | None
    remedies: list[Remedy]


def fit_row(facts: FitFacts, suggestions: Suggestions | None = None) -> dict[str, object]:
    """The JSON form."""
    row = {item.name: getattr(facts, item.name) for item in fields(FitFacts)}
    row["bounds"] = {name: asdict(span) for name, span in facts.bounds.items()}
    return row | (suggestions or {})


class OpForecast(TypedDict):
    """`time_s` is what the op adds to the run, `device_s` what its kernels take."""

    index: int
    op: str
    module: str
    phase: str
    category: str
    time_s: float
    low_s: float
    high_s: float
    device_s: float
    energy_j: float | None
    source: str
    bound: Bound | None
    roof_share: float | None
    flops: float
    nbytes: float
    dtype: str | None
    output_shapes: list[list[int]]


class ModuleForecast(TypedDict):
    """A module with the modules in it."""

    path: str
    depth: int
    time_s: float
    low_s: float
    high_s: float
    energy_j: float | None
    ops: int


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
    ops: list[OpForecast] = field(repr=False)
    modules: list[ModuleForecast] = field(repr=False)
    warnings: list[str] = field(repr=False)

    @property
    def samples(self) -> int:
        return self.batch or 1

    @property
    def per_sample(self) -> dict[str, float | None]:
        """Time, energy and price of one sample, and samples per second."""
        count, price = self.samples, self.price_per_hour
        return {
            "time_s": self.time_s / count,
            "low_s": self.low_s / count,
            "high_s": self.high_s / count,
            "energy_j": None if self.energy_j is None else self.energy_j / count,
            "throughput_per_s": count / self.time_s if self.time_s else None,
            "price_per_million": None if price is None else price / 3600 * self.time_s / count * 1e6,
        }


def forecast_row(facts: ForecastFacts) -> dict[str, object]:
    """The JSON form."""
    row = {item.name: getattr(facts, item.name) for item in fields(ForecastFacts)}
    return row | {"per_sample": facts.per_sample, "ops": list(facts.ops), "modules": list(facts.modules)}


class PredictedRow(TypedDict, total=False):
    """The predicted figures of a module or an op; the bound is that of an op."""

    predicted_time_s: float
    predicted_low_s: float
    predicted_high_s: float
    predicted_device_s: float
    predicted_energy_j: float | None
    predicted_roof_share: float | None
    predicted_bound: Bound | None
    predicted_source: str | None


@dataclass(frozen=True, slots=True)
class PredictedTimes:
    """The predictions of an analysis for the first device whose time was predicted: modules by path, ops by index."""

    modules: Mapping[str, PredictedRow]
    ops: Mapping[int, PredictedRow]


def predicted_from_document(document: Document) -> PredictedTimes | None:
    if not document.get("forecast"):
        return None
    return PredictedTimes(
        modules=members_known(document["modules"], "path", MODULES, PREDICTION),
        ops=members_known(document["ops"], "index", OPS, PREDICTION),
    )
