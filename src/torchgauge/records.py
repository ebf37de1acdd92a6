"""The facts of one analysis: frozen, without torch, saved and loaded as JSON.

An op that repeats with equal inputs shares one `Signature` (shapes, cost, category); an `OpRecord` adds only what
differs from call to call: the order, the module it ran in, the memory alive, the parameters it used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

SCHEMA_VERSION = 1

CATEGORIES = (
    "matmul", "convolution", "attention", "recurrent", "normalization", "activation", "pooling", "softmax",
    "elementwise", "reduction", "embedding", "indexing", "sort", "fft", "loss", "resize", "communication", "copy",
    "view", "allocation", "other",
)  # fmt: skip

COUNTED, FREE, UNCOUNTED = "counted", "free", "uncounted"

ITEM_BITS: Mapping[str, int] = {
    "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "complex128": 128, "complex64": 64, "complex32": 32,
    "float8_e4m3fn": 8, "float8_e4m3fnuz": 8, "float8_e5m2": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
    "float4_e2m1fn_x2": 8, "int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint64": 64, "uint32": 32,
    "uint16": 16, "uint8": 8, "bool": 8, "qint8": 8, "quint8": 8, "qint32": 32, "quint4x2": 8, "quint2x4": 8,
    "bits8": 8, "bits16": 16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known of a tensor without its values; `stride` is None for a contiguous one."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    stride: tuple[int, ...] | None = None

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        # Types of later torch releases that the table lacks carry their width in their name.
        bits = ITEM_BITS.get(self.dtype) or int("".join(c for c in self.dtype.split("_")[0] if c.isdigit()) or 8)
        return max(bits // 8, 1)

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize

    @property
    def distinct_numel(self) -> int:
        """Elements that exist in memory: a dimension expanded with stride 0 counts once."""
        if self.stride is None:
            return self.numel
        return prod(size if step else min(size, 1) for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def distinct_bytes(self) -> int:
        return self.distinct_numel * self.itemsize

    @property
    def is_floating(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def is_complex(self) -> bool:
        return self.dtype.startswith("complex")

    @property
    def is_arithmetic(self) -> bool:
        """Floating or complex: work on it counts as flops."""
        return self.dtype.startswith(("float", "bfloat", "complex"))


@dataclass(frozen=True, slots=True)
class Cost:
    """The work of one op call, in the units of the contract."""

    macs: int = 0
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.macs + other.macs,
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )


@dataclass(frozen=True, slots=True)
class Signature:
    """One way an op was called: shared by all its equal calls."""

    op: str
    overload: str
    category: str
    status: str
    tags: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: Mapping[str, Any]
    cost: Cost
    activation_bytes: int

    @property
    def dtype(self) -> str | None:
        """The type the arithmetic runs in: that of the first arithmetic input, else of the first tensor."""
        specs = (*self.inputs, *self.outputs)
        return next((spec.dtype for spec in specs if spec.is_arithmetic), specs[0].dtype if specs else None)


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One op call, in the order of execution."""

    index: int
    signature: Signature
    module: str
    live_bytes: int
    weights: tuple[str, ...] = ()
    phase: str = "forward"
    source: str | None = None  # file:line, where the graph of the model tells
    # By input, the op that last wrote the memory it lies in; None for parameters, the model's inputs and constants.
    producers: tuple[int | None, ...] = ()

    @property
    def op(self) -> str:
        return self.signature.op

    @property
    def category(self) -> str:
        return self.signature.category

    @property
    def status(self) -> str:
        return self.signature.status

    @property
    def cost(self) -> Cost:
        return self.signature.cost


@dataclass(frozen=True, slots=True)
class ModuleRecord:
    """A module of the model, whether it was called or not; `path` is "" for the root.

    `inputs` and `outputs` keep the structure of the first call: dicts and lists hold `TensorSpec`s, other values are
    given by their text.
    """

    path: str
    type: str
    aliases: tuple[str, ...] = ()
    calls: int = 0
    params: int = 0
    trainable_params: int = 0
    param_bytes: int = 0
    inputs: Any = None
    outputs: Any = None

    @property
    def parent(self) -> str | None:
        return None if self.path == "" else self.path.rpartition(".")[0]

    @property
    def depth(self) -> int:
        return 0 if self.path == "" else self.path.count(".") + 1


@dataclass(frozen=True, slots=True)
class ParamRecord:
    """A parameter or buffer; tied tensors appear once, under their first name."""

    name: str
    spec: TensorSpec
    trainable: bool
    is_buffer: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class InputRecord:
    """An input of the model; `inferred` says why it was chosen, None when the user gave it."""

    name: str
    spec: TensorSpec
    inferred: str | None = None


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """`metadata` is what an archive says of itself: versions, byte order, identity."""

    name: str
    kind: str = "module"
    format: str | None = None
    files: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Environment:
    """Where the analysis ran. `device` is the name of the accelerator the model was on, None for the processor;
    `settings` are the switches and variables that decide how fast it runs there."""

    python: str
    torch: str
    platform: str
    cpu: str
    cpu_cores: int | None
    memory_bytes: int | None
    threads: int
    packages: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """How the ops were seen: on fake tensors or for real, and why; mode None where there was no code to run.

    `results` are the ops that wrote what the model gives back."""

    mode: str | None
    reason: str | None
    device: str
    train: bool
    warnings: tuple[str, ...] = ()
    results: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file; `shared_with` names the tensor whose bytes it shares, `logical_elements` is None unless
    several values are packed into one element. `module` is the path of the model's module that holds it, None for what
    is not the model's; `module_type` is None where neither code nor a pickle names the class."""

    name: str
    spec: TensorSpec
    nbytes: int
    file: str
    offset: int | None
    role: str = "parameter"
    shared_with: str | None = None
    logical_elements: int | None = None
    module: str | None = None
    module_type: str | None = None


@dataclass(frozen=True, slots=True)
class PickleImport:
    """A name that a pickle would import; verdict: expected, unknown or dangerous."""

    name: str
    verdict: str
    called: bool


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """The files of a checkpoint. `modules` are the (path, class) of whole modules found in a pickle; `executed` says
    that the user let the pickle run."""

    tensors: tuple[StoredTensor, ...] = ()
    imports: tuple[PickleImport, ...] = ()
    modules: tuple[tuple[str, str], ...] = ()
    executed: bool = False


@dataclass(frozen=True, slots=True)
class ArchitectureRecord:
    """What kind of model it is; family None where neither names nor layers tell."""

    family: str | None
    layer_counts: Mapping[str, int] = field(default_factory=dict)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeightStatistics:
    """What the values of the weights tell: by tensor name the figures of its row, and figures of the whole.

    `failures` are tensors that could not be read, with the reason; `scan` says how the values were read; `against` is
    the comparison with another checkpoint."""

    tensors: Mapping[str, Mapping[str, Any]]
    summary: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[tuple[str, str], ...] = ()
    scan: Mapping[str, Any] = field(default_factory=dict)
    against: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One profiled run of `duration_ns`, as rows of whole numbers; times are nanoseconds since its start, names are
    indices into `names`, and an op is the index of a static one, -1 where there is none.

    `modules`: start, duration, path, thread. `calls`: start, duration, name, thread, op. `kernels`: start, duration,
    name, stream, op. `memory`: time, bytes given (negative: taken back), whether on the device (0 or 1).
    """

    duration_ns: int
    names: tuple[str, ...]
    modules: tuple[tuple[int, int, int, int], ...] = ()
    calls: tuple[tuple[int, int, int, int, int], ...] = ()
    kernels: tuple[tuple[int, int, int, int, int], ...] = ()
    memory: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """What real runs took. `figures` is the document's `measurements`; `modules` (by path) and `ops` (by index) are the
    measured members of their rows; `trace` is one profiled run, None where none was kept."""

    figures: Mapping[str, Any]
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ops: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    trace: TraceRecord | None = None


@dataclass(frozen=True, slots=True)
class EnergyFacts:
    """What a run consumes. `figures` is the document's `energy`; `modules` (by path) and `ops` (by index) are the
    members of their rows: `energy_j` measured, `estimated_energy_j` estimated with its range."""

    figures: Mapping[str, Any]
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ops: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capture:
    """All that was seen. Every view derives from this. `stored` is None for a live module."""

    target: TargetRecord
    environment: Environment
    created: str
    version: str
    run: RunRecord
    inputs: tuple[InputRecord, ...]
    modules: tuple[ModuleRecord, ...]
    params: tuple[ParamRecord, ...]
    ops: tuple[OpRecord, ...]
    input_bytes: int = 0
    stored: StoredRecord | None = None
    architecture: ArchitectureRecord | None = None
    statistics: WeightStatistics | None = None
    measured: Measured | None = None
    energy: EnergyFacts | None = None
    advice: tuple[Mapping[str, Any], ...] = ()
    plan: Mapping[str, Any] | None = None

    @property
    def has_code(self) -> bool:
        """Whether a model was run; without one there are names and shapes, but no ops."""
        return self.run.mode is not None


def tensor_specs(value: Any) -> Iterator[TensorSpec]:
    """The tensor specs in a nested structure, in order."""
    if isinstance(value, TensorSpec):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensor_specs(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensor_specs(item)
