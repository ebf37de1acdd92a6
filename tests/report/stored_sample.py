"""A checkpoint without code: a tied tensor, a packed one, optimizer state, a buffer, a hostile name and pickle."""

from __future__ import annotations

from dataclasses import replace

from tests.report.sample import HOSTILE, sample_capture
from torchgauge.facts import (
    ArchitectureRecord,
    Capture,
    ModuleRecord,
    ParamRecord,
    PickleImport,
    RunRecord,
    StoredRecord,
    StoredTensor,
    TargetRecord,
    TensorSpec,
    View,
)

MATRIX = TensorSpec((8, 4))
PACKED = TensorSpec((8, 2), "uint8")
PACKED_VALUES = 32
FILE = "weights.pt"


def stored_record() -> StoredRecord:
    return StoredRecord(
        tensors=(
            StoredTensor("blocks.0.weight", MATRIX, 128, FILE, 64),
            StoredTensor("blocks.1.weight", MATRIX, 128, FILE, 192),
            StoredTensor("head.weight", MATRIX, 128, FILE, 64, shared_with="blocks.0.weight"),
            StoredTensor("packed.weight", PACKED, 16, FILE, None, logical_elements=PACKED_VALUES),
            StoredTensor("norm.running_mean", TensorSpec((8,)), 32, FILE, 320, "buffer"),
            StoredTensor(f"optimizer.{HOSTILE}", TensorSpec((10,)), 40, FILE, 352, "optimizer"),
        ),
        imports=(
            PickleImport(f"os.{HOSTILE}", "dangerous", True),
            PickleImport("mine.Net", "unknown", True),
            PickleImport("collections.OrderedDict", "expected", True),
        ),
        modules=(("", "mine.Net"),),
    )


def stored_capture() -> Capture:
    numel, size = MATRIX.numel, MATRIX.nbytes
    return replace(
        sample_capture(),
        target=TargetRecord(FILE, "checkpoint", "torch", (FILE,)),
        run=RunRecord(None, "weights only; add --as file.py:Net for FLOPs", "cpu", False, ("it has a flaw",)),
        inputs=(),
        modules=(
            ModuleRecord("", "Net", params=2 * numel, param_bytes=2 * size),
            ModuleRecord("blocks", "", params=2 * numel, param_bytes=2 * size),
            ModuleRecord("blocks.0", "", params=numel, param_bytes=size),
            ModuleRecord("blocks.1", "", params=numel, param_bytes=size),
            ModuleRecord("head", "", params=numel, param_bytes=size),
        ),
        params=(
            ParamRecord("blocks.0.weight", MATRIX, False, aliases=("head.weight",)),
            ParamRecord("blocks.1.weight", MATRIX, False),
            ParamRecord("norm.running_mean", TensorSpec((8,)), False, is_buffer=True),
        ),
        ops=(),
        input_bytes=0,
        stored=stored_record(),
        architecture=ArchitectureRecord("MLP", {"Linear": 3}, {"width": 8, "heads": 2, "assumed": ["heads"]}),
    )


def stored_view() -> View:
    return View(stored_capture())
