"""The result of an identification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from torchgauge.source.building import Recipe
from torchgauge.source.state_names import LISTED


@dataclass(frozen=True, slots=True)
class Match:
    """A model of a registry with the same names and shapes.

    `assumed` are hyperparameters that these leave open, with the values it was built with; `defaults` the class of its
    config and what no tensor shows of it. `twins` are other models that have these names and shapes too. `remarks` say
    what had to be changed to make it fit. `is_headless`: it is without the head, of which the file has its own.
    `unused` are tensors of the file that it does not use.
    """

    target: str
    recipe: Recipe
    model: nn.Module
    assumed: Mapping[str, object] = field(default_factory=dict)
    defaults: tuple[str, tuple[str, ...]] = ("", ())
    twins: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    is_headless: bool = False
    unused: tuple[str, ...] = ()

    def describe(self) -> str:
        """The remark of a report on a model that was inferred."""
        which = "all tensors but the head's" if self.is_headless else "all tensors"
        if self.unused:
            which = f"all tensors but {len(self.unused)}, which it does not use (as '{self.unused[0]}'),"
        parts = [f"the code is inferred: names and shapes of {which} are those of {self.target}", *self.remarks]
        if self.twins:
            parts.append(f"with the same tensors, but perhaps another computation: {_listed(self.twins)}")
        if self.assumed:
            values = ", ".join(f"{name} {value}" for name, value in self.assumed.items())
            parts.append(f"assumed, not determined by shapes ({values})")
        config, names = self.defaults
        if names:
            parts.append(f"not visible in any tensor, defaults of {config}: {_listed(names)}")
        return "; ".join(parts)


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
