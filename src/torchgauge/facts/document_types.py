"""The types of the saved JSON document, as far as it is read back.

A document may have been edited, and every report trusts its rows: a value that does not have its type here is refused
when the document is loaded. Figures may be null if they are unknown; keys that later versions added may be missing. A
member with the type of a record has the fields of that record, and `schema.read` makes it.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, Literal, NotRequired, TypedDict, final

from torchgauge.facts.capture import Environment, TargetRecord
from torchgauge.facts.compiled import Compiled
from torchgauge.facts.figures import ENERGY, INFERENCE, MODULES, OPS, PREDICTION, PROFILE, Unit, figures_of, keys_known
from torchgauge.facts.files import AdapterRecord, PickleImport, TrainingRecord
from torchgauge.facts.measurements import TraceRecord
from torchgauge.facts.module import ArchitectureRecord
from torchgauge.facts.op import CATEGORIES
from torchgauge.facts.predictions import Bound, FitFacts
from torchgauge.facts.schema import Count, MismatchError, Rule, check_of, is_plain_json

# The sizes of a tensor: as torch has it, their product fits 64 bits.
Shape = Annotated[list[Count], Rule(lambda sizes: prod(sizes) < 2**63, "the sizes of a tensor")]
Figure = float | None
Whole = Count | None
Texts = list[str]
Figures = dict[str, float | None]
Pair = Annotated[list[int], Rule(lambda pair: len(pair) == 2, "a pair of whole numbers")]
Interval = Annotated[list[float], Rule(lambda pair: len(pair) == 2, "two numbers")] | None


_STRIDES = Rule(
    lambda spec: spec.get("stride") is None or len(spec["stride"]) == len(spec["shape"]),
    "a tensor with as many strides as sizes",
)


def _together(*keys: str) -> Rule:
    """These keys come together or not at all."""
    return Rule(lambda row: sum(key in row for key in keys) in (0, len(keys)), f"an object with {', '.join(keys)}")


def _needs(key: str, *others: str) -> Rule:
    """If this key has a value, so have the others."""
    return Rule(
        lambda row: row.get(key) is None or all(row.get(other) is not None for other in others),
        f"an object that has {', '.join(others)} where it has {key}",
    )


class Tensor(TypedDict):
    shape: Shape
    dtype: str
    stride: NotRequired[list[int] | None]
    stored: NotRequired[Count | None]
    index_bytes: NotRequired[Count]


Spec = Annotated[Tensor, _STRIDES]


class Tool(TypedDict):
    version: str


class Input(Tensor):
    name: str
    inferred: str | None
    readers: NotRequired[list[Pair] | None]


class Run(TypedDict):
    """The members of `RunRecord`, and the bytes of the inputs."""

    mode: Literal["fake", "real"] | None
    input_bytes: Count


def _has_figures(level: str) -> Rule:
    """The figures that runs add to a row: each matches its unit, is null or is missing."""
    kinds: dict[Unit, Any] = {Unit.TEXT: str | None, Unit.STRUCTURE: Texts | None}
    checks = {
        figure.key: check_of(kinds.get(figure.unit, Figure))
        for figure in figures_of(level)
        if figure.key in keys_known(level, INFERENCE, PROFILE, ENERGY, PREDICTION)
    }

    def holds(row: dict[str, object]) -> bool:
        for key, check in checks.items():
            try:
                check(row.get(key))
            except MismatchError as error:
                error.keys.append(f".{key}")
                raise
        return True

    return Rule(holds, "figures of their types")


class ModuleFacts(TypedDict):
    path: str
    type: str
    aliases: Texts
    calls: Count
    params: Count
    trainable_params: Whole
    param_bytes: Count
    inputs: Any
    outputs: Any


Module = Annotated[ModuleFacts, _has_figures(MODULES)]


class OpFacts(TypedDict):
    index: Count
    op: str
    overload: str
    module: str
    phase: str
    category: Annotated[str, Rule(CATEGORIES.__contains__, "a category of ops")]
    status: Literal["counted", "free", "uncounted"]
    macs: Count
    flops: Count
    bytes_read: Count
    bytes_written: Count
    activation_bytes: Count
    live_bytes: Count
    weights: Texts
    source: NotRequired[str | None]
    producers: NotRequired[list[int | None]]
    inputs: list[Spec]
    outputs: list[Spec]
    attributes: dict[str, Any]
    tags: Texts


Op = Annotated[OpFacts, _has_figures(OPS)]


class Parameter(Tensor):
    """`stored_tensors` are those that a quantized one is made of; `logical_elements` is null for one that is not."""

    name: str
    trainable: bool
    is_buffer: bool
    aliases: Texts
    logical_elements: NotRequired[Whole]
    stored_tensors: NotRequired[list[Spec]]


class Dequantizing(TypedDict):
    """Ops that restore quantized weights before they are used; `largest_bytes` is the largest tensor they make."""

    ops: Count
    bytes_read: Count
    bytes_written: Count
    largest_bytes: Count
    time_s: Figure


class QuantizedWeights(TypedDict):
    """The quantized weights of a model, scales and zero points included in what is stored."""

    layers: Count
    logical_params: Count
    stored_elements: Count
    stored_bytes: Count
    bits_per_weight: Figure
    macs_by_operands: dict[str, Count]
    dequantize: Dequantizing


class Quantized(TypedDict):
    """The error and size of values in a format with scales of one granularity."""

    sqnr_db: Figure
    max_error: Figure
    bytes: NotRequired[Whole]


Format = dict[str, Quantized | None] | None


class BytesAfter(TypedDict, total=False):
    smallest_30db: Whole
    smallest_20db: Whole


class Quantization(TypedDict, total=False):
    int8: Format
    int4: Format
    fp8_e4m3: Format
    fp8_e5m2: Format
    nf4: Format
    outlier_share: Figure
    outlier_threshold: Figure
    resolution: Figure
    smallest_30db: str | None
    smallest_30db_granularity: str | None
    smallest_20db: str | None
    smallest_20db_granularity: str | None
    bytes_after: BytesAfter | None


class Bins(TypedDict):
    edges: list[float]
    counts: list[Count]


_EDGES = Rule(
    lambda bins: len(bins["edges"]) == len(bins["counts"]) + 1 and bins["edges"] == sorted(bins["edges"]),
    "a histogram: one edge more than counts, in order",
)
Histogram = Annotated[Bins, _EDGES] | None


class Pruning(TypedDict, total=False):
    magnitude: Figures | None
    rows: Figures | None
    columns: Figures | None
    channels: Figures | None
    heads: Figures | None
    two_four_energy: Figure


class Spread(TypedDict, total=False):
    """Statistics of the values of one or several tensors."""

    nan: Whole
    inf: Whole
    subnormal: Whole
    finite: Whole
    zeros: Whole
    sparsity: Figure
    near_zero: Figure
    mean: Figure
    std: Figure
    min: Figure
    max: Figure
    abs_max: Figure
    skewness: Figure
    kurtosis: Figure
    l1: Figure
    l2: Figure
    quantiles: Figures | None
    quantile_resolution: Figure
    histogram: Histogram
    entropy_bits: Figure
    entropy_symbol_bits: Figure
    compressibility: Figure
    quantization: Quantization | None
    pruning: Pruning | None


_SPREAD = _together(
    "nan", "inf", "zeros", "sparsity", "near_zero", "mean", "std", "min", "max", "abs_max", "skewness", "kurtosis",
    "l1", "l2", "quantiles", "entropy_bits", "entropy_symbol_bits", "compressibility",
)  # fmt: skip


_QUANTILES = Rule(
    lambda row: row.get("mean") is None or {"0.001", "0.5", "0.999"} <= (row.get("quantiles") or {}).keys(),
    "an object with the quantiles 0.001, 0.5 and 0.999 of its values",
)


class Lines(TypedDict):
    touched: Count
    contiguous: Count


class Dimension(TypedDict):
    size: Count
    divisible_by: Count


class Alignment(TypedDict, total=False):
    offset_alignment: Whole
    row_bytes: Whole
    rows_aligned: dict[str, bool] | None
    dimensions: list[Dimension]
    contiguous: bool | None
    stride_class: str | None
    memory_order: list[Count] | None
    step_bytes: int | None
    cache_lines: Lines | None


class LowRank(TypedDict):
    rank: Count
    params_saved: Count


class PowerLaw(TypedDict):
    alpha: float
    xmin: Figure
    ks: float
    tail: Count
    alpha_error: float


class Spectrum(TypedDict, total=False):
    """The singular values of a matrix, evenly by rank, and what follows from all of them."""

    singular_values: list[Figure]
    singular_value_floor: Figure
    rank: Count
    effective_rank: Figure
    energy_rank: Count
    low_rank: dict[str, LowRank]
    power_law: PowerLaw | None


class MatrixFigures(TypedDict, total=False):
    alignment: Alignment | None
    spectral_norm: Figure
    stable_rank: Figure
    zstd: Figures | None
    spectral_tolerance: Figure
    condition_estimate: Figure
    condition_is_lower_bound: bool | None
    condition_note: str | None
    dead_rows: Whole
    constant_rows: Whole
    duplicate_rows: Whole
    dead_columns: Whole
    constant_columns: Whole
    duplicate_columns: Whole
    matrix_examples: dict[str, list[object]] | None
    matrix_note: str | None
    spectrum: Spectrum | None
    recommendations: Texts | None


class Packing(TypedDict):
    layout: str
    bits: Count
    shape: Shape
    is_transposed: bool


class TensorFigures(Spread, MatrixFigures, total=False):
    """Figures of the values of a tensor. `fits` is a narrower type that holds all of them, `skipped` why they were not
    read; the last four are of packed tensors."""

    fits: str
    skipped: str
    packing: Packing | None
    dequantized: Spread | None
    code_counts: list[Count] | None
    code_entropy_bits: Figure


class ScannedTensor(TensorFigures, total=False):
    """The same with the tensor whose values it repeats."""

    duplicate_of: str | None


class StoredWeight(TypedDict):
    """A tensor of a file without its values."""

    name: str
    shape: Shape
    dtype: str
    elements: NotRequired[Count]
    bytes: Count
    file: str
    offset: Whole
    stride: NotRequired[list[int] | None]
    role: str
    module: NotRequired[str | None]
    module_type: NotRequired[str | None]
    shared_with: str | None
    duplicate_of: NotRequired[str | None]
    logical_elements: Whole


class Weight(StoredWeight, TensorFigures):
    pass


@final
class Failure(TypedDict):
    name: str
    reason: str


class Outlier(TypedDict):
    """`score` is the distance to the siblings' median in robust standard deviations; None if all others agree."""

    name: str
    figure: str
    value: Figure
    median: Figure
    score: Figure
    siblings: NotRequired[str]
    of: NotRequired[Count]


class Group(Spread):
    tensors: Count
    elements: NotRequired[Count]
    dtypes: NotRequired[Texts]
    not_unpacked: NotRequired[Whole]


class Total(Group):
    bytes: NotRequired[Count]


class SizedGroup(Group):
    bytes: Count


class ModuleGroup(SizedGroup):
    path: str


class KindGroup(SizedGroup):
    kind: str


class Scanned(TypedDict, total=False):
    bytes: Whole
    seconds: Figure
    deep: bool
    spectrum: bool
    threads: Whole
    dask: str | None
    resumed_tensors: Whole


class Aggregated(TypedDict, total=False):
    """The figures of the whole, of modules and of kinds of layers, and tensors unlike their siblings."""

    total: Annotated[Total, _SPREAD, _QUANTILES]
    by_module: list[Annotated[ModuleGroup, _SPREAD]]
    by_kind: list[Annotated[KindGroup, _SPREAD]]
    outliers: list[Outlier]


class Summary(Aggregated):
    failures: list[Failure]
    scan: Scanned


class PickledModule(TypedDict):
    path: str
    type: str


class Pickle(TypedDict):
    imports: list[PickleImport]
    modules: list[PickledModule]
    executed: bool


class Named(TypedDict):
    name: str
    shape: Shape
    dtype: str
    bytes: Count


@final
class Reshaped(TypedDict):
    name: str
    shape: Shape
    was: Shape


class DriftFigures(TypedDict):
    relative_l2: Figure
    cosine: Figure
    changed_share: float
    max_abs_difference: Figure


@final
class Drift(Named, DriftFigures):
    was_dtype: str


class Against(TypedDict):
    path: str
    added: list[Named]
    removed: list[Named]
    reshaped: list[Reshaped]
    retyped: Texts
    changed: list[Drift]
    identical: Count
    identical_bytes: Count
    failures: list[Failure]


class Latency(TypedDict):
    median_s: float
    mean_s: float
    min_s: float
    max_s: float
    std_s: Figure
    p90_s: Figure
    p99_s: Figure
    ci95_s: Interval
    runs: Count
    cold_s: Figure
    warmup_runs: NotRequired[Whole]
    throughput_per_s: Figure
    host_s: NotRequired[Figure]


class Pattern(TypedDict, total=False):
    allocations: Count
    total_bytes: Whole
    median_bytes: Whole
    largest_bytes: Whole
    reuse: Figure
    by_size: dict[str, Count] | None
    fragmentation: Figure
    fragmentation_reason: str | None


_ALLOCATED = Rule(
    lambda row: (
        not row.get("allocations")
        or None not in (row.get("total_bytes"), row.get("median_bytes"), row.get("largest_bytes"))
    ),
    "a pattern of allocations with its bytes",
)


class Moment(TypedDict):
    op: int
    held_bytes: int
    workspace_bytes: int


class Memory(TypedDict, total=False):
    allocated_peak_bytes: Whole
    rss_before_bytes: Whole
    rss_peak_bytes: Whole
    rss_growth_bytes: Whole
    rss_method: str
    cuda_before_bytes: Whole
    cuda_split_peak_bytes: Whole
    cuda_allocated_peak_bytes: Whole
    cuda_reserved_peak_bytes: Whole
    optimizer_state_bytes: Whole
    pattern: Annotated[Pattern, _ALLOCATED] | None
    timeline: list[Moment] | None


_CUDA = _together("cuda_before_bytes", "cuda_allocated_peak_bytes", "cuda_reserved_peak_bytes")
_PROCESS = _together("rss_before_bytes", "rss_peak_bytes", "rss_growth_bytes", "rss_method")


class Scaling(TypedDict):
    threads: Count
    median_s: float
    speedup: float
    efficiency: float


class Threads(TypedDict, total=False):
    intra_op: Whole
    inter_op: Whole
    scaling: list[Scaling] | None
    utilisation: Figure
    serial_share: Figures | None


class Surroundings(TypedDict, total=False):
    other_processes_share: Figure
    own_share: Figure
    load_average: Figure
    governor: str | None


class UnjoinedCalls(TypedDict):
    op: str
    calls: Count
    time_s: float


class Joins(TypedDict):
    attributed_share: NotRequired[Figure]
    unjoined_calls: NotRequired[list[UnjoinedCalls]]


class Profile(Joins):
    runs: Count
    median_s: float
    overhead_share: Figure
    joined_ops: Count
    static_ops: Count
    kernels: NotRequired[Whole]
    device_s: NotRequired[Figure]
    device_idle_s: NotRequired[Figure]


class Range(TypedDict):
    value: float
    low: float
    high: float


class SweepPoint(TypedDict):
    key: str
    value: int | float | str
    latency: Latency | None
    memory: NotRequired[Annotated[Memory, _CUDA, _PROCESS] | None]
    failure: str | None
    throughput_per_s: NotRequired[Figure]
    time_per_sample_s: NotRequired[Figure]
    efficient: NotRequired[bool | None]
    energy_per_sample_j: NotRequired[Figure]
    estimated_energy_per_sample_j: NotRequired[Range | None]
    watts_mean: NotRequired[Figure]
    power_limit_watts: NotRequired[Figure]
    energy_reason: NotRequired[str | None]


class Extent(TypedDict):
    min: Figure
    mean: Figure
    max: Figure


class Sampled(TypedDict, total=False):
    unit: str
    min: Figure
    mean: Figure
    max: Figure
    total: float | list[float | None] | None
    by_label: dict[str, Extent] | None
    samples: Whole
    t_s: list[float]
    values: list[float | list[float | None] | None]
    period_s: Figure
    update_period_s: Figure


_HAS_UNIT = Rule(lambda row: "unit" in row, "an object with unit")


class SamplingCost(TypedDict):
    cpu_s: Figure
    share: Figure


class System(TypedDict):
    duration_s: Figure
    period_s: Figure
    cost: NotRequired[SamplingCost | None]
    quantities: dict[str, Annotated[Sampled, _together("min", "mean", "max"), _HAS_UNIT]]
    absent: dict[str, str]


class Counters(TypedDict, total=False):
    measured_flops: Figure
    theoretical_flops: Figure
    measured_over_theoretical: Figure
    vector_width_shares: Figures | None
    vector_bits_mean: Figure
    instructions_per_cycle: Figure
    cache_hit_ratio: Figure
    memory_read_bytes: Figure
    memory_written_bytes: Figure
    memory_bytes_per_s: Figure
    memory_bandwidth_share: Figure
    page_faults: Figure
    cycles: Figure
    instructions: Figure
    cache_references: Figure
    cache_misses: Figure
    task_clock_s: Figure
    runs: Whole
    least_running_share: Figure
    notes: Texts
    absent: dict[str, str]


class Measurements(TypedDict, total=False):
    failure: str | None
    latency: Latency | None
    device: str
    memory: Annotated[Memory, _CUDA, _PROCESS] | None
    unexplained_s: Figure
    threads: Threads | None
    system: System | None
    counters: (
        Annotated[Counters, _needs("measured_flops", "theoretical_flops"), _needs("instructions_per_cycle", "cycles")]
        | None
    )
    surroundings: Surroundings | None
    profile: Profile | None
    sweep: list[SweepPoint] | None
    notes: Texts
    phases: dict[str, float] | None
    module_phases: dict[str, dict[str, float]] | None
    settings: dict[str, object] | None


class Basis(TypedDict):
    """The basis of an energy estimate."""

    technology: str
    technology_known: bool
    work_joules: Range
    watts: Range | None
    sources: Texts
    notes: Texts


class Series(TypedDict):
    t_s: list[float]
    values: list[float]


class Ends(TypedDict):
    first: float
    last: float
    min: float
    max: float


class Thermal(TypedDict, total=False):
    series: dict[str, Series]
    temperature_c: Ends | None
    clock_hz: Ends | None
    throttled: dict[str, float] | None
    is_throttled: bool | None
    drift: Figures | None
    absent: dict[str, str]


class Refused(TypedDict):
    op: str
    reason: str


class Attribution(TypedDict, total=False):
    method: str | None
    reason: str | None
    explained_share: Figure
    residue_j: Figure
    replayed_time_share: Figure
    waiting_watts: Figure
    busy_s: Figure
    gap_s: Figure
    gap_joules: Figure
    kinds: list[dict[str, object]]
    refused: list[Refused]


class Carbon(TypedDict):
    country: str | None
    place: str | None
    g_per_kwh: float
    year: Whole
    source: str
    pue: float
    boundary: str
    rate_per_s: float
    assumed: NotRequired[str | None]
    grams_per_1000: NotRequired[Figure]
    grams_per_year: NotRequired[Figure]
    estimated_grams_per_1000: NotRequired[Range | None]
    estimated_grams_per_year: NotRequired[Range | None]


class Best(TypedDict):
    flops_per_joule: float
    dtype: str
    source: str


class Meter(TypedDict):
    name: str
    available: bool
    reason: NotRequired[str | None]
    covers: NotRequired[str]
    unit: NotRequired[str]
    update_period_s: NotRequired[Figure]
    resolution_j: NotRequired[Figure]
    used: NotRequired[bool]


class MeteredEnergy(TypedDict):
    """The energy of one run, from the trials under a meter."""

    joules: Figure
    ci95_j: NotRequired[Interval]
    net_joules: NotRequired[Figure]
    watts_mean: NotRequired[Figure]
    watts_peak: NotRequired[Figure]
    idle_watts: NotRequired[Figure]
    flops_per_joule: NotRequired[Figure]
    joules_per_sample: NotRequired[Figure]
    joules_per_token: NotRequired[Figure]
    trials: NotRequired[Whole]
    iterations: NotRequired[Whole]
    window_s: NotRequired[Figure]


class EstimatedEnergy(TypedDict, total=False):
    estimated_joules: Range | None
    estimated_joules_per_sample: Range | None
    estimated_watts_mean: Range | None
    estimated_flops_per_joule: Range | None
    estimated_from: Basis | None


class EnergyFigures(MeteredEnergy, EstimatedEnergy):
    origin: Literal["measured", "estimated", "unavailable"]
    reason: str | None
    boundary: NotRequired[str | None]
    meters: list[Meter]
    power_limit_watts: NotRequired[Figure]
    notes: Texts
    thermal: NotRequired[Thermal | None]
    attribution: NotRequired[Attribution | None]
    carbon: NotRequired[Carbon | None]
    device_best: NotRequired[Best | None]


class Where(TypedDict):
    module: str | None
    ops: list[Count]
    weight: str | None
    source: NotRequired[str | None]
    line: NotRequired[str | None]


class Gain(TypedDict):
    quantity: str
    low: float
    high: float
    seconds: NotRequired[Figure]
    bytes: NotRequired[Whole]
    basis: NotRequired[Literal["measured", "predicted", "bound"]]
    device: NotRequired[str]
    how: NotRequired[str]


class AdvicePlace(TypedDict, total=False):
    module: str | None
    ops: list[Count]
    weight: str | None
    source: str | None
    evidence: dict[str, object]


class Evidence(TypedDict, total=False):
    """The members that reports read; each rule adds its own figures."""

    count: Count
    places: list[AdvicePlace]


class OutputError(TypedDict):
    """How far the outputs are from the original's: the norm of the difference over the norm, and the share of rows with
    the same top-1; null where they were not compared."""

    relative: Figure
    cosine: NotRequired[Figure]
    top1: Figure


class MeasuredTime(TypedDict, total=False):
    """The time next to the original's, of advice that is about something else too."""

    gain: Figure
    ci95: Interval
    pairs: Count
    rounds: Count
    floor: Figure
    other_processes_share: Figure
    second_process_gain: Figure


class Verified(TypedDict):
    quantity: str
    gain: Figure
    ci95: Interval
    output_error: OutputError
    tolerance: NotRequired[Figure]
    kept: bool
    verdict: NotRequired[Literal["confirmed", "refuted", "inconclusive"]]
    reason: str | None
    settled_by: NotRequired[str | None]
    before: NotRequired[Figure]
    after: NotRequired[Figure]
    samples: NotRequired[Whole]
    one_process: NotRequired[str | None]
    time: NotRequired[MeasuredTime | None]
    code: NotRequired[str | None]
    note: NotRequired[str | None]


class Advice(TypedDict):
    rule: str
    kind: NotRequired[Literal["bug", "gain"]]
    where: Where
    evidence: Annotated[Evidence, Rule(is_plain_json, "figures of ordinary size")]
    recommendation: str
    code: str | None
    code_kind: NotRequired[Literal["patch", "edit"] | None]
    expected_gain: Gain | None
    risk: str
    confidence: Literal["high", "medium", "low"]
    verified: NotRequired[Verified | None]
    unverified: NotRequired[str | None]


class Tried(TypedDict):
    rules: Texts
    gain: Figure
    ci95: Interval
    output_error: OutputError
    kept: bool
    reason: NotRequired[str | None]


class Plan(TypedDict):
    rules: Texts
    gain: Figure
    ci95: Interval
    output_error: OutputError | None
    reason: NotRequired[str | None]
    code: str | None
    tried: list[Tried]


class ScanTotals(TypedDict):
    params: Count
    trainable_params: Whole
    param_bytes: Count


class Peaks(TypedDict):
    """The limits of the device: operations per second by type, and bytes per second."""

    flops_per_s: dict[str, float]
    bytes_per_s: float


class ForecastRow(TypedDict):
    """The predicted time and energy of the run on a device, with 90 % intervals."""

    device: str
    title: str
    mode: str
    execution: str
    batch: int | None
    bound: Bound
    predicted_time_s: float
    predicted_low_s: float
    predicted_high_s: float
    predicted_energy_j: float | None
    predicted_energy_low_j: float | None
    predicted_energy_high_j: float | None
    peaks: NotRequired[Peaks]
    warnings: NotRequired[list[str]]


class ExpectedTime(TypedDict):
    """The predicted time of the run: of this machine ("this"), or of a device for comparison. `source` says what the
    prediction rests on."""

    device: str
    title: str
    predicted_time_s: float
    predicted_low_s: float
    predicted_high_s: float
    source: str


_OF_A_GRAPH = Rule(
    lambda compiled: all(row["graph"] < len(compiled.get("graphs", ())) for row in compiled.get("kernels", ())),
    "kernels whose graphs are listed",
)


WeightRow = Annotated[Weight, _STRIDES, _SPREAD]


class Common(TypedDict):
    tool: Tool
    created: str
    environment: Environment
    target: TargetRecord
    capture: Run
    architecture: ArchitectureRecord
    weights: list[WeightRow]
    weight_summary: NotRequired[Summary | None]
    against: NotRequired[Against | None]
    pickle: NotRequired[Pickle | None]
    training: NotRequired[TrainingRecord | None]
    adapter: NotRequired[AdapterRecord | None]


class Scan(Common):
    """A saved scan of weights."""

    totals: ScanTotals


def _has_root(modules: list[ModuleFacts]) -> bool:
    paths = [module["path"] for module in modules]
    return "" in paths and len(set(paths)) == len(paths)


def _are_linked(ops: list[OpFacts]) -> bool:
    known = {op["index"] for op in ops}
    return len(known) == len(ops) and all(
        known.issuperset(p for p in op.get("producers", ()) if p is not None) for op in ops
    )


class Document(Common):
    """A saved analysis."""

    inputs: list[Annotated[Input, _STRIDES]]
    modules: Annotated[list[Module], Rule(_has_root, "modules with distinct paths, the root among them")]
    ops: Annotated[list[Op], Rule(_are_linked, "ops with distinct indices, whose producers are among them")]
    parameters: list[Annotated[Parameter, _STRIDES]]
    quantization: NotRequired[QuantizedWeights | None]
    measurements: NotRequired[Measurements | None]
    trace: NotRequired[TraceRecord | None]
    energy: NotRequired[EnergyFigures | None]
    advice: NotRequired[list[Advice]]
    fit: NotRequired[list[FitFacts]]
    forecast: NotRequired[list[ForecastRow]]
    expected_times: NotRequired[list[ExpectedTime]]
    options: NotRequired[list[Advice]]
    plan: NotRequired[Plan | None]
    compiled: NotRequired[Annotated[Compiled, _OF_A_GRAPH] | None]


_RUN = Rule(
    lambda document: document["capture"]["mode"] is not None or not document["ops"],
    "a document that says how its ops were recorded, fake or real",
)
ANALYSIS = Annotated[Document, _RUN]
