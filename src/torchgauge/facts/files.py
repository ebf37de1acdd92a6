"""Checkpoint files: their tensors and totals, the training they come from, adapters; in the JSON document and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypedDict

from torchgauge.facts.schema import Count, as_json
from torchgauge.facts.tensor import TensorSpec

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Common, StoredWeight


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file; `shared_with` names the tensor whose bytes it shares, `logical_elements` is None unless
    several values are packed into one element. `module` is the path of the model's module that holds it, None for other
    tensors; `module_type` is None where neither code nor a pickle names the class."""

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


class BestMetric(TypedDict):
    name: str
    value: float | None


class Scheduler(TypedDict):
    """The type is a conclusion from the settings where the file does not name it; so with an optimizer."""

    name: str | None
    type: str | None
    settings: dict[str, object]


class Optimizer(Scheduler):
    groups: Count
    state_bytes: Count
    state_tensors: Count


class Average(TypedDict):
    """A moving average of the weights."""

    name: str
    elements: Count
    bytes: Count
    decay: float | None
    updates: float | None


class RandomState(TypedDict):
    generators: list[str]
    bytes: Count


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """The training that a checkpoint is of, as far as its files say. All values are plain JSON.

    `made_by` is the trainer that wrote it, `model` what it calls the model."""

    made_by: str | None = None
    model: str | None = None
    epoch: float | None = None
    step: float | None = None
    best_metric: BestMetric | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    arguments: Mapping[str, object] = field(default_factory=dict)
    optimizers: tuple[Optimizer, ...] = ()
    schedulers: tuple[Scheduler, ...] = ()
    ema: Average | None = None
    rng: RandomState | None = None
    scaler: Mapping[str, object] | None = None

    @property
    def is_empty(self) -> bool:
        return self == TrainingRecord()


@dataclass(frozen=True, slots=True)
class AdapterRecord:
    """Weights that adapt another model (LoRA and other methods of PEFT).

    `targets` are the names that its config gives, `modules` the modules that have tensors. `adapted_params` are those
    of the matrices that it changes, known from the shapes of LoRA; `base_params` those of the whole base model, where
    it lies at its path. Shares are of the two; None where a figure is not known."""

    method: str
    base_model: str | None = None
    rank: Count | None = None
    alpha: float | None = None
    targets: tuple[str, ...] = ()
    modules: Count = 0
    trainable_params: Count = 0
    adapted_params: Count | None = None
    base_params: Count | None = None
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def trainable_share(self) -> float | None:
        """The share of base and adapter together."""
        whole = None if self.base_params is None else self.base_params + self.trainable_params
        return self.trainable_params / whole if whole else None

    @property
    def share_of_adapted(self) -> float | None:
        return self.trainable_params / self.adapted_params if self.adapted_params else None


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
    """Sums over the tensors of a file; bytes that several names share count once.

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


def weight_row(tensor: StoredTensor) -> StoredWeight:
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


def pickle_member(stored: StoredRecord | None) -> dict[str, object] | None:
    """The imports and modules of the files' pickles; null for a live module."""
    if stored is None:
        return None
    return {
        "imports": as_json(stored.imports),
        "modules": [{"path": path, "type": kind} for path, kind in stored.modules],
        "executed": stored.executed,
    }


def stored_from_document(document: Common) -> StoredRecord | None:
    """None for the run of a live module."""
    pickle = document.get("pickle")
    if pickle is None:
        return None
    tensors = []
    for row in document["weights"]:
        stride = row.get("stride")
        tensors.append(
            StoredTensor(
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
        )
    return StoredRecord(
        tensors=tuple(tensors),
        imports=tuple(pickle["imports"]),
        modules=tuple((row["path"], row["type"]) for row in pickle["modules"]),
        executed=pickle["executed"],
    )


def training_member(found: TrainingRecord | None) -> dict[str, object] | None:
    """`optimizer` and `scheduler` are the first of theirs; nearly always the only ones."""
    if found is None:
        return None
    members: dict[str, object] = {}
    for name, value in as_json(found).items():
        if name in ("optimizers", "schedulers"):
            members[name.removesuffix("s")] = value[0] if value else None
        members[name] = value
    return members


def adapter_member(found: AdapterRecord | None) -> dict[str, object] | None:
    if found is None:
        return None
    return {
        **as_json(found), "trainable_share": found.trainable_share, "share_of_adapted": found.share_of_adapted
    }  # fmt: skip
