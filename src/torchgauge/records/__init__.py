"""The facts of one analysis: frozen, without torch, saved and loaded as JSON."""

from torchgauge.records.capture import SCHEMA_VERSION, Capture
from torchgauge.records.figures import EnergyFacts, Measured, TraceRecord, WeightStatistics
from torchgauge.records.files import PickleImport, StoredRecord, StoredTensor
from torchgauge.records.model import ArchitectureRecord, InputRecord, ModuleRecord, ParamRecord
from torchgauge.records.op import CATEGORIES, COUNTED, FREE, UNCOUNTED, Cost, OpRecord, Signature
from torchgauge.records.run import Allocation, Environment, RunRecord, StepMemory, TargetRecord
from torchgauge.records.tensor import ITEM_BITS, TensorSpec, tensor_specs
from torchgauge.records.training import AdapterRecord, TrainingRecord

__all__ = [
    "CATEGORIES",
    "COUNTED",
    "FREE",
    "ITEM_BITS",
    "SCHEMA_VERSION",
    "UNCOUNTED",
    "AdapterRecord",
    "Allocation",
    "ArchitectureRecord",
    "Capture",
    "Cost",
    "EnergyFacts",
    "Environment",
    "InputRecord",
    "Measured",
    "ModuleRecord",
    "OpRecord",
    "ParamRecord",
    "PickleImport",
    "RunRecord",
    "Signature",
    "StepMemory",
    "StoredRecord",
    "StoredTensor",
    "TargetRecord",
    "TensorSpec",
    "TraceRecord",
    "TrainingRecord",
    "WeightStatistics",
    "tensor_specs",
]
