"""What files hold: tensors and their totals, the training they are of, adapters; in the JSON document and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from torchgauge.records import AdapterRecord, PickleImport, StoredRecord, StoredTensor, TensorSpec, TrainingRecord

TOTALS = ("stored_elements", "logical_params", "optimizer_elements", "stored_bytes")


class Stored(Protocol):
    """A tensor of a file: an entry of an index, or its record."""

    @property
    def spec(self) -> TensorSpec: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def role(self) -> str: ...
    @property
    def shared_with(self) -> str | None: ...
    @property
    def logical_elements(self) -> int | None: ...


def file_totals(tensors: Iterable[Stored]) -> dict[str, int]:
    """What the tensors of a file add up to; bytes that several names share count once.

    Stored elements are the distinct ones: `ones(3, 1).expand(3, 1000)` stores 3. Logical parameters are those of the
    model: packed values unpacked, scales and zero points of a packing left out."""
    unique = [tensor for tensor in tensors if tensor.shared_with is None]
    return {
        "stored_elements": sum(tensor.spec.distinct_numel for tensor in unique),
        "logical_params": sum(logical_elements(tensor) for tensor in unique if tensor.role == "parameter"),
        "optimizer_elements": sum(tensor.spec.distinct_numel for tensor in unique if tensor.role == "optimizer"),
        "stored_bytes": sum(tensor.nbytes for tensor in unique),
    }


def logical_elements(tensor: Stored) -> int:
    return tensor.spec.numel if tensor.logical_elements is None else tensor.logical_elements


def stored_totals(stored: StoredRecord | None) -> dict[str, int | None]:
    """The figures of the files: null for a live module."""
    return {**dict.fromkeys(TOTALS), **({} if stored is None else file_totals(stored.tensors))}


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
    stride = row.get("stride")
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


def training_member(found: TrainingRecord | None) -> dict[str, Any] | None:
    """`optimizer` and `scheduler` are the first of theirs; nearly always the only ones."""
    if found is None:
        return None
    return {
        "made_by": found.made_by,
        "model": found.model,
        "epoch": found.epoch,
        "step": found.step,
        "best_metric": found.best_metric and dict(found.best_metric),
        "metrics": dict(found.metrics),
        "arguments": dict(found.arguments),
        "optimizer": dict(found.optimizers[0]) if found.optimizers else None,
        "optimizers": [dict(one) for one in found.optimizers],
        "scheduler": dict(found.schedulers[0]) if found.schedulers else None,
        "schedulers": [dict(one) for one in found.schedulers],
        "ema": found.ema and dict(found.ema),
        "rng": found.rng and dict(found.rng),
        "scaler": found.scaler and dict(found.scaler),
    }


def training_from_document(document: Mapping[str, Any]) -> TrainingRecord | None:
    row = document.get("training")
    if row is None:
        return None
    single = {name: row[name] for name in TrainingRecord.__slots__ if name not in ("optimizers", "schedulers")}
    return TrainingRecord(**single, optimizers=tuple(row["optimizers"]), schedulers=tuple(row["schedulers"]))


def adapter_member(found: AdapterRecord | None) -> dict[str, Any] | None:
    if found is None:
        return None
    facts = {name: getattr(found, name) for name in AdapterRecord.__slots__}
    shares = {"trainable_share": found.trainable_share, "share_of_adapted": found.share_of_adapted}
    return facts | {"targets": list(found.targets), "settings": dict(found.settings)} | shares


def adapter_from_document(document: Mapping[str, Any]) -> AdapterRecord | None:
    row = document.get("adapter")
    if row is None:
        return None
    return AdapterRecord(**{name: row[name] for name in AdapterRecord.__slots__} | {"targets": tuple(row["targets"])})
