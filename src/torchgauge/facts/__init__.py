"""What was recorded about a model: frozen, without torch, saved and loaded as JSON; and the view that reports read."""

from torchgauge.facts.capture import (
    SCHEMA_VERSION,
    Allocation,
    Capture,
    Environment,
    GrowingAttribute,
    HostRead,
    RunRecord,
    StepMemory,
    TargetRecord,
)
from torchgauge.facts.compiled import (
    COMPILED,
    EAGER,
    EXECUTIONS,
    EXTERN,
    Compiled,
    CompiledGraph,
    CompiledKernel,
    GraphBreak,
    Recompilation,
)
from torchgauge.facts.files import AdapterRecord, PickleImport, StoredRecord, StoredTensor, TrainingRecord
from torchgauge.facts.measurements import EnergyFacts, Measured, TraceRecord
from torchgauge.facts.module import ArchitectureRecord, InputRecord, ModuleRecord, ParamRecord
from torchgauge.facts.op import CATEGORIES, COUNTED, FREE, UNCOUNTED, Cost, OpRecord, Signature
from torchgauge.facts.predictions import Bounds, FitFacts, ForecastFacts, PredictedTimes
from torchgauge.facts.tensor import ITEM_BITS, TensorSpec, tensor_specs
from torchgauge.facts.tree import Node, Sums, build_tree
from torchgauge.facts.view import Row, View
from torchgauge.facts.weights import WeightStatistics

__all__ = [
    "CATEGORIES",
    "COMPILED",
    "COUNTED",
    "EAGER",
    "EXECUTIONS",
    "EXTERN",
    "FREE",
    "ITEM_BITS",
    "SCHEMA_VERSION",
    "UNCOUNTED",
    "AdapterRecord",
    "Allocation",
    "ArchitectureRecord",
    "Bounds",
    "Capture",
    "Compiled",
    "CompiledGraph",
    "CompiledKernel",
    "Cost",
    "EnergyFacts",
    "Environment",
    "FitFacts",
    "ForecastFacts",
    "GraphBreak",
    "GrowingAttribute",
    "HostRead",
    "InputRecord",
    "Measured",
    "ModuleRecord",
    "Node",
    "OpRecord",
    "ParamRecord",
    "PickleImport",
    "PredictedTimes",
    "Recompilation",
    "Row",
    "RunRecord",
    "Signature",
    "StepMemory",
    "StoredRecord",
    "StoredTensor",
    "Sums",
    "TargetRecord",
    "TensorSpec",
    "TraceRecord",
    "TrainingRecord",
    "View",
    "WeightStatistics",
    "build_tree",
    "tensor_specs",
]
