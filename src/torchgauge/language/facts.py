"""What is known about a language model, as plain data: it comes from a process that has no rights."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class AttentionFacts(TypedDict, total=False):
    heads: int | None
    kv_heads: int
    window: int


class LayerFacts(AttentionFacts):
    path: str
    index: int
    kind: str
    feed_forward: str
    params: int
    matrix_params: int
    active_params: int
    cache_bytes_per_token: float
    cache_fixed_bytes: int


class ModuleCost(TypedDict):
    path: str
    macs: int
    flops: int
    bytes_read: int
    bytes_written: int


class HeldFacts(TypedDict):
    """A tensor of the cache; `of` is "text" or "encoder"."""

    layer: str
    name: str
    of: str
    shape: list[int]
    dtype: str
    bytes: int


class IdleModule(TypedDict):
    """A module that text alone does not reach."""

    path: str
    type: str
    params: int


class ModelFacts(TypedDict):
    type: str
    params: int
    active_params: int
    embedding_params: int
    head_params: int
    tied: bool
    vocabulary: int | None
    context_limit: int | None
    positions: str
    dtype: str | None
    weight_bytes: int
    buffer_bytes: int
    bits_per_weight: float
    encoder: bool
    encoder_fixed: bool
    cache_class: str
    layers: list[LayerFacts]
    not_run: list[IdleModule]
    layer_matrix_params: int
    loose_cache_bytes: int
    ops_per_token: NotRequired[float]  # once passes have been run


class PassFacts(TypedDict):
    macs: int
    flops: int
    bytes_read: int
    bytes_written: int
    weight_bytes: int
    matrix_bytes: int
    ops: int
    peak_bytes: int
    before_bytes: int
    after_bytes: int
    modules: list[ModuleCost]
    uncounted: dict[str, int]
    times: dict[str, dict[str, float | str | None]]


class PointFacts(TypedDict):
    tokens: int
    batch: int
    encoder_tokens: int
    last_logits: bool
    prefix: int
    drafts: int
    prefill: PassFacts
    decode: PassFacts
    cache: list[HeldFacts]
    cache_after: list[HeldFacts]
    extended_from: list[int] | None


class Answer(TypedDict):
    """As plain data: it comes from a process that has no rights."""

    model: NotRequired[ModelFacts]
    warnings: NotRequired[list[str]]
    points: list[PointFacts]
