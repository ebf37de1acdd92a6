"""All that one analysis saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchgauge.records.figures import EnergyFacts, Measured, WeightStatistics
from torchgauge.records.files import StoredRecord
from torchgauge.records.model import ArchitectureRecord, InputRecord, ModuleRecord, ParamRecord
from torchgauge.records.op import OpRecord
from torchgauge.records.run import Environment, RunRecord, TargetRecord
from torchgauge.records.training import AdapterRecord, TrainingRecord

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Capture:
    """All that was seen. Every view derives from this. `stored` is None for a live module."""

    target: TargetRecord
    environment: Environment
    created: str
    version: str
    run: RunRecord
    inputs: tuple[InputRecord, ...]
    modules: tuple[ModuleRecord, ...]
    params: tuple[ParamRecord, ...]
    ops: tuple[OpRecord, ...]
    input_bytes: int = 0
    stored: StoredRecord | None = None
    architecture: ArchitectureRecord | None = None
    statistics: WeightStatistics | None = None
    measured: Measured | None = None
    energy: EnergyFacts | None = None
    advice: tuple[Mapping[str, Any], ...] = ()
    plan: Mapping[str, Any] | None = None
    training: TrainingRecord | None = None
    adapter: AdapterRecord | None = None

    @property
    def has_code(self) -> bool:
        """Whether a model was run; without one there are names and shapes, but no ops."""
        return self.run.mode is not None

    @property
    def samples(self) -> int:
        """The size of the batch: the first dimension of the first input."""
        return next((max(entry.spec.shape[0], 1) for entry in self.inputs if entry.spec.shape), 1)
