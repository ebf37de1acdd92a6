"""The files of a checkpoint: the tensors in them, and what their pickles would import."""

from __future__ import annotations

from dataclasses import dataclass

from torchgauge.records.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file; `shared_with` names the tensor whose bytes it shares, `logical_elements` is None unless
    several values are packed into one element. `module` is the path of the model's module that holds it, None for what
    is not the model's; `module_type` is None where neither code nor a pickle names the class."""

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
