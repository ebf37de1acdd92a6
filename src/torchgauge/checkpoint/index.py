"""The contents of a checkpoint: its tensors and where their bytes are, and the names that its pickles import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from math import prod

from torchgauge.facts import AdapterRecord, StoredTensor, TensorSpec, TrainingRecord
from torchgauge.facts.files import file_totals


class Role(StrEnum):
    PARAMETER = "parameter"
    BUFFER = "buffer"  # running statistics, position ids, masks and similar
    OPTIMIZER = "optimizer"
    OTHER = "other"  # neither of the model nor of its optimizer


class Verdict(Enum):
    EXPECTED = "expected"
    UNKNOWN = "unknown"
    DANGEROUS = "dangerous"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A rectangular part of a sharded tensor: its corner and shape within the tensor, and where its bytes are."""

    corner: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    offset: int | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class Deflated:
    """A compressed record: the offset and number of its bytes, its inflated size, and where a tensor starts in that."""

    offset: int
    packed: int
    size: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor. `name` is the full path through the containers, joined by dots.

    `offset` is the position of the first element in `file`; None if the bytes are not contiguous in one file (meta,
    split into `chunks`, or compressed: `deflated`). `shared_with` names the tensor whose bytes it overlaps: the largest
    of the storage, then the first; disjoint views of a storage share nothing. `logical_elements` is the number of
    values if several are packed into one element, and 0 for auxiliary tensors of a packing. `encoding` names the type
    of quantized blocks; the spec then describes their bytes.
    """

    name: str
    spec: TensorSpec
    file: str
    offset: int | None
    nbytes: int
    role: Role = Role.PARAMETER
    shared_with: str | None = None
    logical_elements: int | None = None
    big_endian: bool = False
    chunks: tuple[Chunk, ...] = ()
    deflated: Deflated | None = None
    encoding: str | None = None

    @property
    def elements(self) -> int:
        return prod(self.spec.shape)

    def record(self, module: str | None = None, module_type: str | None = None) -> StoredTensor:
        """The tensor as a fact of a capture; `module` is the path of the module that holds it."""
        return StoredTensor(
            self.name, self.spec, self.nbytes, self.file, self.offset, self.role.value, self.shared_with,
            self.logical_elements, module, module_type,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Import:
    """A name that the pickle would import, and whether it would be called."""

    name: str
    verdict: Verdict
    called: bool
    file: str = ""


@dataclass(frozen=True, slots=True)
class PickledModule:
    """A module in a pickle, described and never instantiated; `path` is its path in the file."""

    path: str
    type: str


@dataclass(frozen=True, slots=True)
class Index:
    """A checkpoint file or folder. `format` is one of: torch, torch-legacy, torch-tar, gguf, safetensors,
    safetensors-sharded, torch-sharded, distributed, deepspeed, megatron, tensor-parallel, torchscript, exported.

    `model_prefix` is the part before the names of all tensors of the model, with its dot. `archive` describes the file
    itself for reports: versions, byte order, identity. `gguf` is the metadata of a GGUF file. `missing_weights` counts
    tensors that the code of an archive refers to but that were not saved.
    """

    path: str
    format: str
    files: tuple[str, ...]
    entries: tuple[Entry, ...]
    imports: tuple[Import, ...] = ()
    modules: tuple[PickledModule, ...] = ()
    model_prefix: str = ""
    archive: Mapping[str, str] = field(default_factory=dict)
    gguf: Mapping[str, object] = field(default_factory=dict)
    missing_weights: int = 0
    warnings: tuple[str, ...] = ()
    training: TrainingRecord | None = None
    adapter: AdapterRecord | None = None

    @property
    def unique(self) -> list[Entry]:
        """The entries without those that share the storage of another."""
        return [entry for entry in self.entries if entry.shared_with is None]

    @property
    def stored_elements(self) -> int:
        """Distinct elements in the file, optimizer state included."""
        return file_totals(self.entries)["stored_elements"]

    @property
    def logical_params(self) -> int:
        return file_totals(self.entries)["logical_params"]

    @property
    def optimizer_elements(self) -> int:
        return file_totals(self.entries)["optimizer_elements"]

    @property
    def stored_bytes(self) -> int:
        return file_totals(self.entries)["stored_bytes"]
