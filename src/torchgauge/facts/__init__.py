"""The records of a model: frozen, without torch, saved and loaded as JSON; and the view that reports read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.facts.capture import *
    from torchgauge.facts.compiled import *
    from torchgauge.facts.document import *
    from torchgauge.facts.document_types import Against as Against
    from torchgauge.facts.document_types import Drift as Drift
    from torchgauge.facts.document_types import Latency as Latency
    from torchgauge.facts.experts import *
    from torchgauge.facts.figures import *
    from torchgauge.facts.files import *
    from torchgauge.facts.measurements import *
    from torchgauge.facts.module import *
    from torchgauge.facts.op import *
    from torchgauge.facts.predictions import *
    from torchgauge.facts.row_types import *
    from torchgauge.facts.schema import MAX_DEPTH as MAX_DEPTH
    from torchgauge.facts.schema import MAX_NUMBER as MAX_NUMBER
    from torchgauge.facts.schema import Count as Count
    from torchgauge.facts.schema import Rule as Rule
    from torchgauge.facts.schema import conform as conform
    from torchgauge.facts.schema import read_records as read_records
    from torchgauge.facts.tensor import *
    from torchgauge.facts.tree import *
    from torchgauge.facts.view import *
    from torchgauge.facts.weights import *

_HOMES = {
    "capture": (
        "FOREIGN_READ", "SCHEMA_VERSION", "Allocation", "Capture", "Environment", "GrowingAttribute", "HeldTensor",
        "HostRead", "RunRecord", "StepMemory", "TargetRecord",
    ),
    "compiled": (
        "COMPILED", "EAGER", "EXECUTIONS", "EXTERN", "Compiled", "CompiledGraph", "CompiledKernel", "GraphBreak",
        "Recompilation",
    ),
    "document": ("capture_from_document",),
    "document_types": ("Against", "Drift", "Latency"),
    "experts": ("find_mixtures",),
    "figures": ("CODE", "FIGURES", "MEASURED", "MODULES", "OPS", "STATIC", "TOTALS", "WEIGHTS", "Unit", "figures_of"),
    "files": ("AdapterRecord", "PickleImport", "StoredRecord", "StoredTensor", "TrainingRecord"),
    "measurements": ("EnergyFacts", "Measured", "TraceRecord", "blank_measurements"),
    "module": ("ArchitectureRecord", "InputRecord", "ModuleRecord", "ParamRecord", "enclosing_paths", "is_within"),
    "op": ("CATEGORIES", "COUNTED", "FREE", "UNCOUNTED", "Cost", "OpRecord", "Signature"),
    "predictions": (
        "Bounds", "FitFacts", "ForecastFacts", "MemoryMoment", "ModuleForecast", "OpForecast", "PredictedTimes",
        "Remedy", "Suggestions", "fit_row", "forecast_row",
    ),
    "schema": ("MAX_DEPTH", "MAX_NUMBER", "Count", "Rule", "conform", "read_records"),
    "tensor": ("ITEM_BITS", "TensorSpec", "contiguous_stride", "is_contiguous", "tensor_specs", "windowed_elements"),
    "tree": ("Node", "Sums", "build_tree"),
    "row_types": ("AdviceRow", "ModuleRow", "OpRow", "Row", "TotalsRow"),
    "view": ("View",),
    "weights": ("WeightStatistics", "by_pattern", "layer_of", "indexed_name", "stem_of", "weight_ops"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
