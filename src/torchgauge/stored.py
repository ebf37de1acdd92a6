"""Tensors in files: their totals, and their form in the JSON document and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchgauge.records import PickleImport, StoredRecord, StoredTensor, TensorSpec

TOTALS = ("stored_elements", "logical_params", "optimizer_elements", "stored_bytes")


def stored_totals(stored: StoredRecord | None) -> dict[str, int | None]:
    """The figures of the files: null for a live module. Bytes that several names share count once."""
    if stored is None:
        return dict.fromkeys(TOTALS)
    unique = [tensor for tensor in stored.tensors if tensor.shared_with is None]
    return {
        "stored_elements": sum(tensor.spec.numel for tensor in unique),
        "logical_params": sum(_logical(tensor) for tensor in unique if tensor.role == "parameter"),
        "optimizer_elements": sum(tensor.spec.numel for tensor in unique if tensor.role == "optimizer"),
        "stored_bytes": sum(tensor.nbytes for tensor in unique),
    }


def _logical(tensor: StoredTensor) -> int:
    return tensor.spec.numel if tensor.logical_elements is None else tensor.logical_elements


def weight_row(tensor: StoredTensor) -> dict[str, Any]:
    spec = tensor.spec
    return {
        "name": tensor.name,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "elements": spec.numel,
        "bytes": tensor.nbytes,
        "file": tensor.file,
        "offset": tensor.offset,
        "stride": None if spec.stride is None else list(spec.stride),
        "role": tensor.role,
        "module": tensor.module,
        "module_type": tensor.module_type,
        "shared_with": tensor.shared_with,
        # The same content; a scan of the values also finds copies.
        "duplicate_of": tensor.shared_with,
        "logical_elements": tensor.logical_elements,
    }


def pickle_member(stored: StoredRecord | None) -> dict[str, Any] | None:
    """What the files' pickles would import and hold; null for a live module."""
    if stored is None:
        return None
    return {
        "imports": [{"name": i.name, "verdict": i.verdict, "called": i.called} for i in stored.imports],
        "modules": [{"path": path, "type": kind} for path, kind in stored.modules],
        "executed": stored.executed,
    }


def stored_from_document(document: Mapping[str, Any]) -> StoredRecord | None:
    """None for the run of a live module."""
    pickle = document.get("pickle")
    if pickle is None:
        return None
    return StoredRecord(
        tensors=tuple(_tensor(row) for row in document["weights"]),
        imports=tuple(PickleImport(row["name"], row["verdict"], row["called"]) for row in pickle["imports"]),
        modules=tuple((row["path"], row["type"]) for row in pickle["modules"]),
        executed=pickle["executed"],
    )


def _tensor(row: Mapping[str, Any]) -> StoredTensor:
    stride = row["stride"]
    return StoredTensor(
        name=row["name"],
        spec=TensorSpec(tuple(row["shape"]), row["dtype"], None if stride is None else tuple(stride)),
        nbytes=row["bytes"],
        file=row["file"],
        offset=row["offset"],
        role=row["role"],
        shared_with=row["shared_with"],
        logical_elements=row["logical_elements"],
        module=row.get("module"),
        module_type=row.get("module_type"),
    )
