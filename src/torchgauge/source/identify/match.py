"""The result of an identification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from torchgauge.source.building import Recipe
from torchgauge.source.state_names import LISTED_NAMES
from torchgauge.units import format_names


@dataclass(frozen=True, slots=True)
class Match:
    """A model of a registry with the same names and shapes.

    `assumed` are hyperparameters that these do not determine, with the values it was built with; `defaults` are the
    class of its config and the settings that no tensor depends on. `twins` are other models with these names and
    shapes. `remarks` describe the changes that made it fit. `is_headless`: the head was removed, because the file has
    another one. `unused` are tensors of the file that the model does not use.
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
        """The remark in the report about an inferred model."""
        which = "all tensors except the head's" if self.is_headless else "all tensors"
        if self.unused:
            which = f"all tensors except {len(self.unused)} that it does not use (such as '{self.unused[0]}')"
        parts = [f"the code is inferred: names and shapes of {which} match {self.target}", *self.remarks]
        if self.twins:
            twins = format_names(self.twins, LISTED_NAMES)
            parts.append(f"these have the same tensors and may compute something else: {twins}")
        if self.assumed:
            values = ", ".join(f"{name} {value}" for name, value in self.assumed.items())
            parts.append(f"assumed, not determined by shapes: {values}")
        config, names = self.defaults
        if names:
            parts.append(f"defaults of {config}, not determined by any tensor: {format_names(names, LISTED_NAMES)}")
        return "; ".join(parts)
