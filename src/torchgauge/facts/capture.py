"""One analysis: the target, the run, and everything that was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchgauge.facts.compiled import COMPILED, EAGER, Compiled
from torchgauge.facts.files import AdapterRecord, StoredRecord, TrainingRecord
from torchgauge.facts.measurements import EnergyFacts, Measured
from torchgauge.facts.module import ArchitectureRecord, InputRecord, ModuleRecord, ParamRecord
from torchgauge.facts.op import OpRecord
from torchgauge.facts.predictions import FitFacts, PredictedTimes
from torchgauge.facts.schema import Count
from torchgauge.facts.weights import WeightStatistics

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Advice, ExpectedTime, ForecastRow, Plan

SCHEMA_VERSION = 1


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
    """The machine of the analysis. `device` is the name of the accelerator that the model was on, None for the
    processor; `settings` are the switches and variables that affect its speed."""

    python: str
    torch: str
    platform: str
    cpu: str
    cpu_cores: Count | None
    memory_bytes: Count | None
    threads: Count
    packages: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


# The op that allocated a storage (-1: it was there before the first op, an input), and the bytes of the storage.
Allocation = tuple[int, int]


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Storages of a training step that outlive the op that reads them next, by purpose.

    `saved`: from the forward pass (inputs included, parameters and buffers not), read again by the backward pass.
    `gradients`: of the parameters. `optimizer_state`: what `optimizer` keeps from step to step.
    """

    optimizer: str
    saved: tuple[Allocation, ...] = ()
    gradients: tuple[Allocation, ...] = ()
    optimizer_state: tuple[Allocation, ...] = ()


# Why a model is run for real: other code than torch's reads a tensor by its address.
FOREIGN_READ = "C++ code that reads the memory of a tensor"


@dataclass(frozen=True, slots=True)
class HostRead:
    """A line of the model's code that brings values of a tensor to the host ("cpu", "numpy", "tolist", "print", and
    "tensor" for `torch.tensor([a, b])`), and the ops that made what it reads, below 0 for the model's inputs, None for
    parameters and buffers; empty for numbers that the code made itself. None in files of versions that did not record
    it."""

    call: str
    module: str
    source: str
    made_by: tuple[int | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class GrowingAttribute:
    """An attribute of a module that holds `nbytes` more with every call, and the line that adds to it."""

    module: str
    attribute: str
    nbytes: Count
    source: str


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """Memory that op `op` allocated and op `last_read` was the last to read, but that was freed only after `released`
    ops: a variable, a list or an attribute held it in between."""

    op: Count
    last_read: Count
    released: Count


@dataclass(frozen=True, slots=True)
class RunRecord:
    """How the ops were seen: on fake tensors or for real, and why; mode None where there was no code to run.

    `results` are the ops that wrote the model's outputs. `step` is None for inference, and for training runs in
    files of versions that did not record it. `first_call_ops` are those that a second call did not repeat: the model
    keeps their results; `later_peak_bytes` is the peak of activations of later calls. `kept_ops` allocated memory
    that is still in use after an inference call although it is not an output: an attribute or the caller holds it.
    `held` are tensors of loops that inference keeps although nothing reads them again. `number_arguments` are names of
    arguments that hold numbers or text outside of tensors. `recomputed_ops` are ops of the forward pass that ran
    again during the backward pass, as activation checkpointing makes them. `lost_tensors` counts the tensors that a
    truncated file lacks."""

    mode: str | None
    reason: str | None
    device: str
    train: bool
    warnings: tuple[str, ...] = ()
    results: tuple[int, ...] = ()
    step: StepMemory | None = None
    host_reads: tuple[HostRead, ...] = ()
    growing: tuple[GrowingAttribute, ...] = ()
    first_call_ops: tuple[int, ...] = ()
    later_peak_bytes: int | None = None
    kept_ops: tuple[int, ...] = ()
    number_arguments: tuple[str, ...] = ()
    held: tuple[HeldTensor, ...] = ()
    recomputed_ops: tuple[int, ...] = ()
    lost_tensors: int = 0


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
    advice: tuple[Advice, ...] = ()
    options: tuple[Advice, ...] = ()
    plan: Plan | None = None
    training: TrainingRecord | None = None
    adapter: AdapterRecord | None = None
    fit: tuple[FitFacts, ...] = ()  # predicted memory on devices, without the course of a step
    forecast: tuple[ForecastRow, ...] = ()  # and predicted time
    expected: tuple[ExpectedTime, ...] = ()  # of this machine and of another, without being asked
    predicted: PredictedTimes | None = None  # of the first of them, by op and module
    compiled: Compiled | None = None  # None: eager

    @property
    def has_code(self) -> bool:
        """Whether a model was run; without one there are names and shapes, but no ops."""
        return self.run.mode is not None

    @property
    def recurrent_layers(self) -> frozenset[str]:
        """The paths of layers with the weights of torch's LSTM, GRU and RNN, subclasses included."""
        names = (param.name.rpartition(".") for param in self.params)
        return frozenset(path for path, _, own in names if own == "weight_hh_l0")

    @property
    def execution(self) -> str:
        return EAGER if self.compiled is None else COMPILED

    @property
    def samples(self) -> int:
        """The size of the batch: the first dimension of the first input."""
        return next((max(entry.spec.shape[0], 1) for entry in self.inputs if entry.spec.shape), 1)
