"""All that is known of a model when its family is judged; the attention heads that a run shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torchgauge.facts import OpRecord
from torchgauge.source.architecture.blocks import Blocks, find_blocks
from torchgauge.source.architecture.layers import Layer, Shapes, distinct_layers, layers_of

_NUMBER = re.compile(r"\d+")

# By name; `assumed` lists the names of those that are a convention, not a fact.
Hyperparameters = dict[str, Any]


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
    stated: Mapping[str, object] = field(default_factory=dict)

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


# (batch, length, heads, size), or (tokens, heads, size); all others have (batch, heads, length, size).
_TOKENS_FIRST = ("_flash_attention_forward", "_efficient_attention_forward", "varlen_attn", "_flash_attn_")
_COUNTS = ("num_head", "num_heads")  # of ops that take the projections too
# Between a product and its softmax, or a softmax and its product: scale, mask, bias, cast, dropout.
_BETWEEN = ("elementwise", "copy", "activation", "indexing", "other")
_FARTHEST = 6


@dataclass(frozen=True, slots=True)
class Heads:
    """`count` is None where attention is written out: a product over all heads looks like one over samples."""

    size: int
    count: int | None = None
    kv_count: int | None = None


def observed_heads(ops: Iterable[OpRecord]) -> tuple[Heads, ...]:
    """Of each attention in the forward pass, in order."""
    forward = {op.index: op for op in ops if op.phase == "forward"}
    found = (_fused(op) if op.category == "attention" else _written_out(op, forward) for op in forward.values())
    return tuple(heads for heads in found if heads is not None)


def _fused(op: OpRecord) -> Heads | None:
    signature = op.signature
    count = next((signature.attributes[name] for name in _COUNTS if name in signature.attributes), None)
    if not signature.inputs or not signature.inputs[0].shape:
        return None
    query = signature.inputs[0].shape
    if isinstance(count, int) and count:
        return Heads(query[-1] // count, count)
    if len(signature.inputs) < 3 or len(query) < 3:
        return None
    key, place = signature.inputs[1].shape, -2 if any(name in op.op for name in _TOKENS_FIRST) else -3
    return Heads(query[-1], query[place], key[place] if len(key) == len(query) else None)


def _written_out(op: OpRecord, ops: Mapping[int, OpRecord]) -> Heads | None:
    """`op` multiplies values by a softmax of a product of two activations, the query and the key."""
    if op.category != "matmul" or op.weights:
        return None
    for producer in op.producers:
        softmax = _source(producer, "softmax", ops)
        scores = _source(softmax.producers[0], "matmul", ops) if softmax and softmax.producers else None
        if scores is not None and not scores.weights:
            factors = scores.signature.inputs[-2:]  # before them `baddbmm` has the bias
            return Heads(factors[0].shape[-1]) if factors[0].shape else None
    return None


def _source(index: int | None, category: str, ops: Mapping[int, OpRecord]) -> OpRecord | None:
    """The op of that category that a value comes from, past what may lie between."""
    for _ in range(_FARTHEST):
        op = None if index is None else ops.get(index)
        if op is None or op.category == category:
            return op
        if op.category not in _BETWEEN or not op.producers:
            return None
        index = op.producers[0]
    return None
