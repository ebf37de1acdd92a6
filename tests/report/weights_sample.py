"""A checkpoint of eight equal blocks whose values were read; the sixth is an outlier, one tensor could not be read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.report.sample import HOSTILE
from tests.report.stored_sample import stored_capture
from torchgauge.facts import (
    Capture,
    Cost,
    OpRecord,
    RunRecord,
    Signature,
    StoredRecord,
    StoredTensor,
    TensorSpec,
    View,
    WeightStatistics,
)

BLOCKS, APART = 8, 5
QKV, UP, NORM = TensorSpec((12, 4)), TensorSpec((16, 4)), TensorSpec((4,))
FILE = "model.safetensors"


def figures(std: float = 0.1, *, sparsity: float = 0.0, int8_db: float | None = 40.0, **more: Any) -> Any:
    return {
        "nan": 0, "inf": 0, "subnormal": 0, "zeros": 0, "sparsity": sparsity, "near_zero": 0.01,
        "mean": 0.001, "std": std, "min": -3 * std, "max": 4 * std, "abs_max": 4 * std,
        "quantiles": {"0.001": -2 * std, "0.5": 0.0, "0.999": 2 * std}, "skewness": 0.1, "kurtosis": 0.2,
        "l1": 5.0, "l2": 2.0, "entropy_bits": 12.0, "entropy_symbol_bits": 16, "compressibility": 0.25,
        "histogram": {"edges": [-1.0, 1.0], "counts": [48]},
        "spectral_norm": None, "duplicate_of": None, "recommendations": [],
        "pruning": {"magnitude": {"0.01": 0.06, "0.05": 0.2}},
        "quantization": {
            "int8": {"per_tensor": {"sqnr_db": int8_db, "max_error": 0.01}},
            "int4": {"per_tensor": {"sqnr_db": 15.0, "max_error": 0.1}},
            "outlier_share": 0.0, "smallest_30db": "int8", "smallest_20db": "int8",
            "bytes_after": {"int8": {"per_tensor": 20}, "smallest_30db": 20, "smallest_20db": 20},
        },
        **more,
    }  # fmt: skip


def stored_tensors() -> tuple[StoredTensor, ...]:
    found = []
    for block in range(BLOCKS):
        path = f"blocks.{block}"
        parts = (("attn.qkv.weight", QKV), ("mlp.up.weight", UP), ("norm.weight", NORM))
        found += [
            StoredTensor(f"{path}.{name}", spec, spec.nbytes, FILE, 0, module=f"{path}.{name.removesuffix('.weight')}")
            for name, spec in parts
        ]
    return (*found, StoredTensor(f"{HOSTILE}.weight", QKV, QKV.nbytes, FILE, 0))


def tensor_figures() -> dict[str, Any]:
    found = {tensor.name: figures() for tensor in stored_tensors() if tensor.name.startswith("blocks")}
    found[f"blocks.{APART}.mlp.up.weight"] = figures(0.4, int8_db=22.0)
    found["blocks.0.attn.qkv.weight"] = figures(
        sparsity=0.5, nan=2, recommendations=["NaN in 2 of 48 values: not usable"]
    )
    for block in (1, 2):
        found[f"blocks.{block}.mlp.up.weight"]["recommendations"] = [f"int8 keeps 4{block}.0 dB: 4.0× smaller"]
    return found


def statistics() -> WeightStatistics:
    kind = {"tensors": BLOCKS, "elements": BLOCKS * UP.numel, "bytes": BLOCKS * UP.nbytes, "dtypes": ["float32"]}
    outlier = {"name": f"blocks.{APART}.mlp.up.weight", "figure": "std", "value": 0.4, "median": 0.1, "score": None}
    summary: Any = {
        "total": {"tensors": 3 * BLOCKS, "not_unpacked": 1, **figures(nan=2)},
        "by_module": [],
        "by_kind": [{"kind": "mlp", **kind, **figures()}],
        "outliers": [outlier],
    }
    return WeightStatistics(
        tensors=tensor_figures(),
        summary=summary,
        failures=((f"{HOSTILE}.weight", "the file ends early"),),
        scan={"bytes": 1 << 20, "seconds": 0.5, "deep": False},
    )


def ops() -> tuple[OpRecord, ...]:
    signature = Signature("aten::linear", "", "matmul", "counted", (), (), (), {}, Cost(1, 2, 3, 4), 0)
    return tuple(
        OpRecord(block, signature, f"blocks.{block}.mlp.up", 0, (f"blocks.{block}.mlp.up.weight",))
        for block in range(BLOCKS)
    )


def weights_capture(*, has_ops: bool = False) -> Capture:
    capture = replace(
        stored_capture(),
        stored=StoredRecord(stored_tensors()),
        statistics=statistics(),
        modules=stored_capture().modules[:1],
    )
    return replace(capture, run=RunRecord("fake", None, "cpu", False), ops=ops()) if has_ops else capture


def weights_view(*, has_ops: bool = False) -> View:
    return View(weights_capture(has_ops=has_ops))
