"""How far the values of weights are looked into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchgauge.errors import UsageError
from torchgauge.facts import ArchitectureRecord

if TYPE_CHECKING:
    from torchgauge.source import Source
    from torchgauge.weights import ScanRequest

# What is looked at without being asked for: a reflex, not a task.
WEIGHTS_BYTES = 4 << 30
DEEP_BYTES = 2 << 30


def switch(value: bool | str, name: str) -> bool | None:
    """None for "auto"."""
    if value == "auto":
        return None
    if not isinstance(value, bool):
        raise UsageError(f'{name} is True, False or "auto", not {value!r}')
    return value


def reads_weights(source: Source, weights: bool | None) -> bool:
    if weights is not None:
        return weights
    return source.index is not None and source.index.stored_bytes <= WEIGHTS_BYTES


@dataclass(frozen=True, slots=True)
class Depth:
    """How far the values are looked into; `deep` None leaves it to the size."""

    deep: bool | None
    spectrum: bool

    @classmethod
    def of(cls, deep: bool | str, spectrum: bool) -> Depth:
        chosen = switch(deep, "deep")
        if spectrum and chosen is False:
            raise UsageError("singular values are deep figures: leave out --no-deep (deep=False) or --spectrum")
        return cls(True if spectrum else chosen, spectrum)

    def request(self, nbytes: int) -> ScanRequest:
        from torchgauge.weights import ScanRequest

        deep = nbytes <= DEEP_BYTES if self.deep is None else self.deep
        return ScanRequest(deep=deep, spectrum=self.spectrum)


def known_heads(architecture: ArchitectureRecord | None) -> int | None:
    heads = architecture.hyperparameters.get("heads") if architecture else None
    return heads if isinstance(heads, int) else None
