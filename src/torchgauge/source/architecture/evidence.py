"""All that is known of a model when its family is judged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torchgauge.source.architecture.blocks import Blocks, find_blocks
from torchgauge.source.architecture.heads import Heads
from torchgauge.source.architecture.layers import Layer, Shapes, distinct_layers, layers_of

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Evidence:
    """The names and shapes of the tensors; of a model that was run also the categories of its ops and the heads of its
    attention.

    `stated` are hyperparameters that the model itself states, in a config or in attributes of its layers.
    """

    shapes: Shapes
    categories: frozenset[str] = frozenset()
    is_causal: bool = False
    heads: tuple[Heads, ...] = ()
    stated: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def layers(self) -> list[Layer]:
        return layers_of(self.shapes)

    @cached_property
    def blocks(self) -> list[Blocks]:
        return find_blocks(self.shapes)

    @cached_property
    def segments(self) -> frozenset[str]:
        """The parts of all names, without numbers, in lower case."""
        parts = {part for name in self.shapes for part in name.split(".")}
        return frozenset(part.rstrip("0123456789").lower() for part in parts) - {""}

    def has(self, *words: str) -> bool:
        """Whether a part of a name is one of the words."""
        return not self.segments.isdisjoint(words)

    def names_match(self, pattern: str) -> bool:
        compiled = re.compile(pattern)
        return any(compiled.search(name) for name in self.outlines)

    @cached_property
    def outlines(self) -> frozenset[str]:
        """The names with a 0 for each number: a few hundred, however many layers there are."""
        return frozenset(_NUMBER.sub("0", name) for name in self.shapes)

    @cached_property
    def has_attention(self) -> bool:
        return "attention" in self.categories or any(layer.is_query for layer in distinct_layers(self.layers))
