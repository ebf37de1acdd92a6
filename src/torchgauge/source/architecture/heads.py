"""The heads of attention as a run shows them: in the shapes of a fused op, or of the products around a softmax."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchgauge.facts import OpRecord

# (batch, length, heads, size), or (tokens, heads, size); all others have (batch, heads, length, size).
_TOKENS_FIRST = ("_flash_attention_forward", "_efficient_attention_forward", "varlen_attn", "_flash_attn_")
_COUNTS = ("num_head", "num_heads")  # of ops that take the projections too
# Between a product and its softmax, or a softmax and its product: scale, mask, bias, cast, dropout.
_BETWEEN = ("elementwise", "copy", "activation", "indexing", "other")
_FARTHEST = 6


@dataclass(frozen=True, slots=True)
class Heads:
    """`count` is None where attention is written out: a product over all heads does not tell them from samples."""

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
