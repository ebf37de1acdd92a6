"""A language model, as plain data: it comes from an isolated process. `LlmFacts` is the
whole of it, as `llm` reports it."""

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
    """`weight_bytes` is the part of `bytes_read` that is parameters, `matrix_bytes` that of matrices of layers."""

    path: str
    macs: int
    flops: int
    bytes_read: int
    bytes_written: int
    weight_bytes: int
    matrix_bytes: int


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


class PassTime(TypedDict):
    """A pass on a device, predicted, with 90 % intervals."""

    time_s: float
    low_s: float
    high_s: float
    energy_j: float | None
    energy_low_j: float | None
    energy_high_j: float | None
    bound: str


class PassFacts(TypedDict):
    macs: int
    flops: int
    bytes_read: int
    bytes_written: int
    weight_bytes: int
    matrix_bytes: int
    ops: int
    skipped_flops: int
    peak_bytes: int
    before_bytes: int
    after_bytes: int
    modules: list[ModuleCost]
    uncounted: dict[str, int]
    times: dict[str, PassTime]


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
    """Plain data, since it comes from a process without rights."""

    model: NotRequired[ModelFacts]
    warnings: NotRequired[list[str]]
    points: list[PointFacts]


class FitRow(TypedDict):
    """Whether sequences of a length fit on a device together."""

    device: str
    context: int
    concurrent: int
    verdict: str
    used_bytes: int
    low_bytes: int
    high_bytes: int
    capacity_bytes: int
    weights_bytes: int
    cache_bytes: int
    activation_bytes: int
    overhead_bytes: int
    fewest_devices: int | None


class CacheRow(TypedDict):
    tokens: int
    bytes: int
    paged_bytes: int
    bytes_per_token: float


class StepRow(TypedDict):
    """A prompt, or a decode step; the members from `time_s` to `mbu` are null without a device, and on one that it does
    not fit on. `bytes_read` is `weight_bytes`, `cache_read_bytes` and `rest_bytes` together."""

    kind: str
    tokens: int
    batch: int
    macs: int
    flops: int
    bytes_read: int
    bytes_written: int
    weight_bytes: int
    cache_bytes: int
    cache_read_bytes: int
    rest_bytes: int
    skipped_flops: int
    peak_bytes: int
    modules: list[ModuleCost]
    device: str | None
    time_s: float | None
    low_s: float | None
    high_s: float | None
    energy_j: float | None
    energy_low_j: float | None
    energy_high_j: float | None
    bound: str | None
    mfu: float | None
    mbu: float | None
    verdict: str | None
    prefix: int
    shared_bytes: int
    arithmetic_intensity: float
    new_tokens: float
    tokens_per_s: float | None
    joules_per_token: float | None


class CrossoverRow(TypedDict):
    device: str
    context: int
    batch: int | None
    arithmetic_intensity: float
    ridge: float
    flops_each: float
    bytes_each: float


class DeviceRow(TypedDict):
    """The capacity of a device, and where decode becomes compute-bound; the speed of a size in GiB is unknown."""

    device: str
    longest_context: int
    most_sequences: int
    flops_per_s: float | None
    bytes_per_s: float | None
    ridge: float | None
    crossovers: list[CrossoverRow]
    compute_bound_context: int | None


class AdapterRow(TypedDict):
    kind: str
    rank: int
    pattern: str


class SpeculativeRow(TypedDict):
    drafts: int
    acceptance: float
    tokens_per_step: float


class ReportedModel(ModelFacts):
    layer_counts: dict[str, int]
    weights_bytes: int


class LlmFacts(TypedDict):
    target: str
    context: int
    concurrent: list[int]
    weights_dtype: str | None
    cache_dtype: str | None
    page_size: int
    execution: str
    adapter: AdapterRow | None
    prefix: int
    speculative: SpeculativeRow | None
    model: ReportedModel
    cache: list[CacheRow]
    prefill: list[StepRow]
    decode: list[StepRow]
    speed: list[StepRow]
    fits: list[FitRow]
    devices: list[DeviceRow]
    warnings: list[str]
