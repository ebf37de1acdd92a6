"""The parts of a model: modules, parameters, inputs; and what kind of model it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchgauge.facts.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class ModuleRecord:
    """A module of the model, whether it was called or not; `path` is "" for the root.

    `inputs` and `outputs` keep the structure of the first call: dicts and lists hold `TensorSpec`s, other values are
    given by their text.
    """

    path: str
    type: str
    aliases: tuple[str, ...] = ()
    calls: int = 0
    params: int = 0
    trainable_params: int = 0
    param_bytes: int = 0
    inputs: Any = None
    outputs: Any = None

    @property
    def parent(self) -> str | None:
        return None if self.path == "" else self.path.rpartition(".")[0]

    @property
    def depth(self) -> int:
        return 0 if self.path == "" else self.path.count(".") + 1


@dataclass(frozen=True, slots=True)
class ParamRecord:
    """A parameter or buffer; tied tensors appear once, under their first name."""

    name: str
    spec: TensorSpec
    trainable: bool
    is_buffer: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class InputRecord:
    """An input of the model; `inferred` says why it was chosen, None when the user gave it.

    `readers` are the ops that read it unchanged, also through views: the index of the op, and which of its inputs
    it is. One tensor given twice has the same readers twice. None in files of versions that did not record it."""

    name: str
    spec: TensorSpec
    inferred: str | None = None
    readers: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class ArchitectureRecord:
    """What kind of model it is; family None if neither names nor layers determine it."""

    family: str | None
    layer_counts: Mapping[str, int] = field(default_factory=dict)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
