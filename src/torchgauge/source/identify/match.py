"""What identification answers with."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from torchgauge.source.building import Recipe
from torchgauge.source.matching import LISTED


@dataclass(frozen=True, slots=True)
class Match:
    """A model of a registry with the same names and shapes.

    `assumed` names hyperparameters that these leave open, `twins` other models that have them too. `remarks` say what
    had to be changed to make it fit. `is_headless`: it is without the head, of which the file has its own.
    """

    target: str
    recipe: Recipe
    model: nn.Module
    assumed: tuple[str, ...] = ()
    twins: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    is_headless: bool = False

    def describe(self) -> str:
        """What a report must say about a model that is a conclusion."""
        which = "all tensors but the head's" if self.is_headless else "all tensors"
        parts = [f"the code is inferred: names and shapes of {which} are those of {self.target}", *self.remarks]
        if self.twins:
            more = f" and {len(self.twins) - LISTED} more" if len(self.twins) > LISTED else ""
            parts.append(f"also those of {', '.join(self.twins[:LISTED])}{more}, which may compute otherwise")
        if self.assumed:
            parts.append(f"with a usual value for what shapes leave open ({', '.join(self.assumed)})")
        return "; ".join(parts)
