"""What a training run left beside its weights, and what an adapter is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """The training that a checkpoint is of, as far as its files tell. All values are plain JSON.

    `made_by` is the trainer that wrote it, `model` what it calls the model. An optimizer is {name, type, settings,
    groups, state_bytes, state_tensors}, a scheduler {name, type, settings}; types are conclusions from the settings
    where the file does not name them. `ema` and `rng` are {name or generators, bytes}."""

    made_by: str | None = None
    model: str | None = None
    epoch: float | None = None
    step: float | None = None
    best_metric: Mapping[str, Any] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    optimizers: tuple[Mapping[str, Any], ...] = ()
    schedulers: tuple[Mapping[str, Any], ...] = ()
    ema: Mapping[str, Any] | None = None
    rng: Mapping[str, Any] | None = None
    scaler: Mapping[str, Any] | None = None

    @property
    def is_empty(self) -> bool:
        return self == TrainingRecord()


@dataclass(frozen=True, slots=True)
class AdapterRecord:
    """Weights that adapt another model (LoRA and other methods of PEFT).

    `targets` are the names that its config gives, `modules` the modules that have tensors. `adapted_params` are those
    of the matrices that it changes, which the shapes of LoRA tell; `base_params` those of the whole base model, where
    it lies at its path. Shares are of the two; None where a figure is not known."""

    method: str
    base_model: str | None = None
    rank: int | None = None
    alpha: float | None = None
    targets: tuple[str, ...] = ()
    modules: int = 0
    trainable_params: int = 0
    adapted_params: int | None = None
    base_params: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trainable_share(self) -> float | None:
        """Of base and adapter together."""
        whole = None if self.base_params is None else self.base_params + self.trainable_params
        return self.trainable_params / whole if whole else None

    @property
    def share_of_adapted(self) -> float | None:
        return self.trainable_params / self.adapted_params if self.adapted_params else None
