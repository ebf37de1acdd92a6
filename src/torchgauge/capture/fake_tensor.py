"""Tensors without data: shape, stride, type and device as the model sees them, and who shares memory with whom.

A `FakeTensor` pretends to be on the device asked for, so torch chooses the kernels it would choose there. Fake tensors
that share memory share one `Storage`; when its last fake tensor dies it leaves the `Ledger`, which is how live memory
is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from torchgauge.capture.structure import storage_of
from torchgauge.facts import TensorSpec
from torchgauge.facts.tensor import contiguous_stride, is_contiguous


class Sparse(NamedTuple):
    """Elements that a sparse tensor stores, and the bytes of their indices."""

    stored: int
    index_bytes: int


def sparsity(tensor: torch.Tensor) -> Sparse | None:
    """None for a dense tensor, and for unknown layouts."""
    if tensor.layout is torch.sparse_coo:
        return Sparse(tensor._values().numel(), tensor._indices().nbytes)
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return Sparse(tensor.values().numel(), tensor.crow_indices().nbytes + tensor.col_indices().nbytes)
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return Sparse(tensor.values().numel(), tensor.ccol_indices().nbytes + tensor.row_indices().nbytes)
    return None


class Spec:
    """The metadata of a tensor, one object per distinct value, so that comparing is comparing identities."""

    __slots__ = ("device", "dtype", "nbytes", "record", "shape", "sparse", "stride")

    def __init__(
        self,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        sparse: Sparse | None = None,
    ):
        self.shape = shape
        self.stride = stride
        self.dtype = dtype
        self.device = device
        self.sparse = sparse
        odd_stride = None if sparse is not None or is_contiguous(shape, stride) else stride
        self.record = TensorSpec(shape, dtype_name(dtype), odd_stride, *(sparse or ()))
        self.nbytes = self.record.distinct_bytes


def meta_tensor(spec: Spec) -> torch.Tensor:
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")


class Specs:
    """The specs of one run, interned."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Spec] = {}

    def get(
        self,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        sparse: Sparse | None = None,
    ) -> Spec:
        key = (shape, stride, dtype, device, sparse)
        spec = self._known.get(key)
        if spec is None:
            spec = self._known[key] = Spec(shape, stride, dtype, device, sparse)
        return spec

    def contiguous(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Spec:
        return self.get(shape, contiguous_stride(shape), dtype, device)

    def of(self, tensor: torch.Tensor, device: torch.device | None = None) -> Spec:
        """The spec of a tensor, as if it were on `device`."""
        if tensor.layout is not torch.strided:
            shape = tuple(tensor.shape)
            return self.get(shape, contiguous_stride(shape), tensor.dtype, device or tensor.device, sparsity(tensor))
        return self.get(tuple(tensor.shape), tensor.stride(), tensor.dtype, device or tensor.device)


class Ledger:
    """Bytes alive at this moment, and the number of storages that they are in. `events`, unless None, lists the
    storages as they come and go: (a number for the storage, its bytes), the bytes below 0 where it goes. `live_of`
    has the bytes by the op that allocated them, and `released`, once these are gone, how many of `ops` had run."""

    __slots__ = ("count", "events", "live", "live_of", "ops", "released")

    def __init__(self, ops: Sequence[object] = ()) -> None:
        self.live = 0
        self.count = 0
        self.events: list[tuple[int, int]] | None = None
        self.ops = ops
        self.live_of: dict[int, int] = {}
        self.released: dict[int, int] = {}

    def add(self, born: int, nbytes: int) -> None:
        self.live += nbytes
        self.live_of[born] = self.live_of.get(born, 0) + nbytes

    def remove(self, born: int, nbytes: int) -> None:
        self.live -= nbytes
        self.live_of[born] = left = self.live_of[born] - nbytes
        if not left:
            self.released[born] = len(self.ops)


# `Storage.assumed` of inferred inputs; the report does not repeat it for every value.
INFERRED_INPUT = "an inferred input"


class Storage:
    """Memory shared by one or more fake tensors. `name` is set for parameters and buffers, which have their own ledger.

    `known` turns False when something unknown was written into it: the values its fake tensors carry are void then.
    `assumed` says what its values rest on where they were assumed (balanced routing) and not computed. `writer` is the
    index of the last op that wrote to it; of an input of the model a number below 0, until an op writes to it. `born`
    is the index of the op that allocated it, -1 for what was there before the first one. `content` keeps count of the
    memory that known content takes.
    """

    __slots__ = ("assumed", "born", "content", "known", "ledger", "name", "nbytes", "writer")

    def __init__(self, nbytes: int, ledger: Ledger, name: str = "", writer: int | None = None, born: int = -1) -> None:
        self.nbytes = nbytes
        self.ledger = ledger
        self.name = name
        self.writer = writer
        self.born = born
        self.known = True
        self.assumed = ""
        self.content: object = None
        ledger.add(born, nbytes)
        ledger.count += 1
        if ledger.events is not None:
            ledger.events.append((id(self), nbytes))

    def __del__(self) -> None:
        ledger = self.ledger
        ledger.remove(self.born, self.nbytes)
        ledger.count -= 1
        if ledger.events is not None:
            ledger.events.append((id(self), -1))


class FakeTensor(torch.Tensor):
    """A tensor without data. `value` is a real CPU tensor if the content is known (small integers, constants)."""

    spec: Spec
    storage_: Storage
    value: torch.Tensor | None
    replaces: type[torch.Tensor]  # the subclass of a parameter; unset for a plain one

    def __new__(  # type: ignore[misc]
        cls, data: torch.Tensor, requires_grad: bool = True, **_: object
    ) -> torch.Tensor:
        """A parameter over `data`: `type(module.weight)(data, requires_grad=…)`, as hooks that load weights write."""
        made = data.detach().requires_grad_(requires_grad)
        made._is_param = True
        return made

    # Ops reach the run through the dispatch mode alone.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: object, types: Sequence[type], args: object = (), kwargs: object = None
    ) -> object:
        if any(kind is not FakeTensor for kind in types):
            return NotImplemented  # another class is asked, as it would be for a plain tensor
        raise RuntimeError(f"{func} was called on a tensor of an analysis that has ended; it holds no data")

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"FakeTensor({tuple(self.shape)}, {self.dtype}, {self.device})"

    @property  # type: ignore[misc]
    def __class__(self) -> type[torch.Tensor]:  # type: ignore[override]
        """For isinstance: the parameter subclass that the fake tensor replaces."""
        return vars(self).get("replaces", FakeTensor)

    def __getattr__(self, name: str) -> Any:
        kind = vars(self).get("replaces", torch.Tensor)
        found = inspect.getattr_static(kind, name, None)
        if found is None:
            raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
        return found.__get__(self, kind) if hasattr(found, "__get__") else found

    @property
    def data(self) -> torch.Tensor:
        return torch._C.TensorBase.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        """The tensor becomes another one: `layer.weight.data = layer.weight.data.half()`."""
        if type(other) is not FakeTensor:
            raise DataDependent("data")
        torch._C.TensorBase.data.__set__(self, other)  # type: ignore[attr-defined]
        self.spec, self.storage_, self.value = other.spec, other.storage_, other.value

    # A fake tensor looks dense to C++ code: what asks whether it is sparse, or makes it dense, needs a real run.
    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        self._must_be_dense("layout")
        return torch.strided

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        self._must_be_dense("is_sparse")
        return False

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        self._must_be_dense("is_sparse_csr")
        return False

    def to_dense(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._must_be_dense("to_dense")
        return super().to_dense(*args, **kwargs)

    def to_sparse(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._must_be_dense("to_sparse")
        return super().to_sparse(*args, **kwargs)

    def to_sparse_csr(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._must_be_dense("to_sparse_csr")
        return super().to_sparse_csr(*args, **kwargs)

    def _must_be_dense(self, asked: str) -> None:
        if self.spec.sparse is not None:
            raise DataDependent(asked, why=WORKS_ON_SPARSE)

    def __format__(self, format_spec: str) -> str:
        # Like a tensor with one element: `f"expert_{index}"` names a module.
        return format(self.item(), format_spec) if self.dim() == 0 else object.__format__(self, format_spec)

    # These read memory without passing the dispatcher, and their own reading must not pass it either.
    def tolist(self) -> Any:
        with torch._C._DisableTorchDispatch():
            return self._content("tolist").tolist()

    def numpy(self, **_: object) -> Any:
        with torch._C._DisableTorchDispatch():
            return torch._C.TensorBase.numpy(self._content("numpy"))

    def __array__(self, dtype: object = None, **_: object) -> Any:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def data_ptr(self) -> int:
        raise DataDependent("data_ptr")

    def __dlpack__(self, **_: object) -> NoReturn:
        raise DataDependent("__dlpack__")

    def share_memory_(self) -> NoReturn:
        raise DataDependent("share_memory_")

    def __deepcopy__(self, memo: dict[int, object]) -> torch.Tensor:
        duplicate = memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        return duplicate

    def _content(self, asked_by: str) -> torch.Tensor:
        if self.value is None or not self.storage_.known:
            raise DataDependent(asked_by)
        return self.value


class Census:
    """The fake tensors of one run."""

    def __init__(self, *ledgers: Ledger) -> None:
        self._ledgers = ledgers

    @property
    def alive(self) -> bool:
        return any(ledger.count for ledger in self._ledgers)

    def counts(self, fake: FakeTensor) -> bool:
        return fake.storage_.ledger in self._ledgers


class Content:
    """A snapshot of the known content of a fake tensor's memory."""

    __slots__ = ("_assumed", "_fake", "_known", "_value", "_writer")

    def __init__(self, fake: FakeTensor) -> None:
        storage = fake.storage_
        self._fake = fake
        self._writer, self._known, self._assumed = storage.writer, storage.known, storage.assumed
        # The whole storage: others may write to other parts of it.
        self._value = None if fake.value is None else storage_of(fake.value).clone()

    def restore(self) -> None:
        storage, value = self._fake.storage_, self._fake.value
        storage.writer, storage.known, storage.assumed = self._writer, self._known, self._assumed
        if value is not None and self._value is not None:
            # Other fake tensors may show the same value: it is written to, not replaced.
            with torch._C._DisableTorchDispatch():
                storage_of(value).copy_(self._value, non_blocking=False)


def make_fake(spec: Spec, storage: Storage, value: torch.Tensor | None = None) -> FakeTensor:
    fake: FakeTensor = torch.Tensor._make_wrapper_subclass(
        FakeTensor, spec.shape, strides=spec.stride, dtype=spec.dtype, device=spec.device, storage_size=storage.nbytes
    )
    fake.spec = spec
    fake.storage_ = storage
    fake.value = value
    return fake


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# Exceptions that stop a run on fake tensors: caught inside `capture/`, never shown to users.

WORKS_ON_SPARSE = "works on sparse tensors"


class DataDependent(Exception):  # noqa: N818 - a signal, not an error
    """The model needs a real run, mostly for values; `why` completes "the model …" in the report."""

    def __init__(self, op: str, module: str = "", why: str = "reads tensor values") -> None:
        super().__init__(op)
        self.op = op
        self.module = module
        self.why = why


class Endless(RuntimeError):  # noqa: N818 - a signal, not an error
    """A loop was aborted; other inputs would take just as long."""
