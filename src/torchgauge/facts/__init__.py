"""What was recorded about a model: frozen, without torch, saved and loaded as JSON; and the view that reports read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.facts.capture import (
    SCHEMA_VERSION,
    Allocation,
    Capture,
    Environment,
    GrowingAttribute,
    HeldTensor,
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
from torchgauge.facts.experts import find_mixtures
from torchgauge.facts.figures import (
    CODE,
    FIGURES,
    MEASURED,
    MODULES,
    OPS,
    STATIC,
    TOTALS,
    WEIGHTS,
    Unit,
    figures_of,
)
from torchgauge.facts.files import AdapterRecord, PickleImport, StoredRecord, StoredTensor, TrainingRecord
from torchgauge.facts.measurements import EnergyFacts, Measured, TraceRecord, blank_measurements
from torchgauge.facts.module import (
    ArchitectureRecord,
    InputRecord,
    ModuleRecord,
    ParamRecord,
    enclosing_paths,
    is_within,
)
from torchgauge.facts.op import CATEGORIES, COUNTED, FREE, UNCOUNTED, Cost, OpRecord, Signature
from torchgauge.facts.predictions import (
    Bounds,
    FitFacts,
    ForecastFacts,
    MemoryMoment,
    ModuleForecast,
    OpForecast,
    PredictedTimes,
    Remedy,
    Suggestions,
    fit_row,
    forecast_row,
)
from torchgauge.facts.tensor import (
    ITEM_BITS,
    TensorSpec,
    contiguous_stride,
    is_contiguous,
    tensor_specs,
    windowed_elements,
)
from torchgauge.facts.tree import Node, Sums, build_tree
from torchgauge.facts.view import Row, View
from torchgauge.facts.weights import WeightStatistics, by_pattern, layer_of, place_of, stem_of, weight_ops
from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.facts.document import capture_from_document
    from torchgauge.facts.document_types import Against, Drift, Latency

__all__ = [
    "CATEGORIES",
    "CODE",
    "COMPILED",
    "COUNTED",
    "EAGER",
    "EXECUTIONS",
    "EXTERN",
    "FIGURES",
    "FREE",
    "ITEM_BITS",
    "MEASURED",
    "MODULES",
    "OPS",
    "SCHEMA_VERSION",
    "STATIC",
    "TOTALS",
    "UNCOUNTED",
    "WEIGHTS",
    "AdapterRecord",
    "Against",
    "Allocation",
    "ArchitectureRecord",
    "Bounds",
    "Capture",
    "Compiled",
    "CompiledGraph",
    "CompiledKernel",
    "Cost",
    "Drift",
    "EnergyFacts",
    "Environment",
    "FitFacts",
    "ForecastFacts",
    "GraphBreak",
    "GrowingAttribute",
    "HeldTensor",
    "HostRead",
    "InputRecord",
    "Latency",
    "Measured",
    "MemoryMoment",
    "ModuleForecast",
    "ModuleRecord",
    "Node",
    "OpForecast",
    "OpRecord",
    "ParamRecord",
    "PickleImport",
    "PredictedTimes",
    "Recompilation",
    "Remedy",
    "Row",
    "RunRecord",
    "Signature",
    "StepMemory",
    "StoredRecord",
    "StoredTensor",
    "Suggestions",
    "Sums",
    "TargetRecord",
    "TensorSpec",
    "TraceRecord",
    "TrainingRecord",
    "Unit",
    "View",
    "WeightStatistics",
    "blank_measurements",
    "build_tree",
    "by_pattern",
    "capture_from_document",
    "contiguous_stride",
    "enclosing_paths",
    "figures_of",
    "find_mixtures",
    "fit_row",
    "forecast_row",
    "is_contiguous",
    "is_within",
    "layer_of",
    "place_of",
    "stem_of",
    "tensor_specs",
    "weight_ops",
    "windowed_elements",
]

# What a saved document may hold: its checks take time to build.
_HOMES = {"document": ("capture_from_document",), "document_types": ("Against", "Drift", "Latency")}
__getattr__ = lazy_names(__name__, _HOMES)
