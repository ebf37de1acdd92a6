"""A resolved target: a model, stored weights, or both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchgauge.checkpoint import Index
from torchgauge.errors import TargetError
from torchgauge.facts import TargetRecord
from torchgauge.progress import Progress

if TYPE_CHECKING:
    from torch import nn


# Formats whose files also contain code.
PROGRAMS = ("torchscript", "exported")


def stored_target(index: Index, name: str, remark: str = "") -> TargetRecord:
    """The record of a file or folder of weights; `remark` names the origin of the code."""
    kind = index.format if index.format in PROGRAMS else "folder" if Path(index.path).is_dir() else "checkpoint"
    text = f"{index.format}, {remark}" if remark else index.format
    return TargetRecord(name, kind, text, index.files, index.archive)


@dataclass(frozen=True, slots=True)
class Source:
    """A model, stored weights, or both, and where they came from.

    `model` is None for a file of weights without code. A registry model may have its parameters on the meta device;
    `build_real` then builds it again with real ones; it is None for a model that the user's code built. `is_unpickled`:
    the model was created by code in the file. `is_inferred`: the model was identified by the names and shapes of the
    weights, which do not determine the hyperparameters in `assumed` (with the values used).
    """

    model: nn.Module | None
    record: TargetRecord
    build_real: Callable[[], nn.Module] | None = None
    index: Index | None = None
    warnings: tuple[str, ...] = ()
    is_unpickled: bool = False
    is_inferred: bool = False
    assumed: Mapping[str, object] = field(default_factory=dict)

    @property
    def runnable(self) -> nn.Module:
        """The model; raises `TargetError` if there is none."""
        if self.model is None:
            raise TargetError(f"'{self.record.name}' contains weights without code; give the code with --as TARGET")
        return self.model

    @property
    def stored(self) -> Index:
        """The weights; raises `TargetError` if there are none."""
        if self.index is None:
            raise TargetError(f"'{self.record.name}' is not a file or folder of weights")
        return self.index


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How to open a file. `code` is the model of bare weights."""

    name: str
    code: Source | None = None
    allow_pickle: bool = False
    progress: Progress | None = None
