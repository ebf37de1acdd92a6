"""The parameters and buffers of a live model, read as if they lay in files: one for each storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torchgauge.checkpoint.dtypes import item_bytes
from torchgauge.checkpoint.index import Entry, Index, Role
from torchgauge.checkpoint.sharing import View, find_owners
from torchgauge.errors import FormatError
from torchgauge.facts import TensorSpec
from torchgauge.facts.strides import is_contiguous
from torchgauge.weights.plan import Unit
from torchgauge.weights.reader import Bytes

if TYPE_CHECKING:
    import torch
    from torch import nn


class LiveTensors:
    """The storages of a model. Those on an accelerator are copied in the pieces that are asked for."""

    def __init__(self, model: nn.Module) -> None:
        self._storages: dict[str, torch.Tensor] = {}
        entries, views = [], []
        for name, tensor, role in _tensors(model):
            entry, view = self._add(name, tensor, role)
            entries.append(entry)
            views.append(view)
        self.index = Index("", "module", tuple(self._storages), tuple(_shared(entries, find_owners(views))))

    def read(self, file: str, offset: int, into: Bytes) -> None:
        storage = self._storages[file]
        if offset + len(into) > len(storage):
            raise FormatError(f"its bytes end at {offset + len(into):,}, beyond its storage of {len(storage):,}")
        into[:] = storage[offset : offset + len(into)].cpu().numpy()

    def expect(self, unit: Unit) -> None:
        """Memory needs no notice."""

    def release(self, file: str, offset: int, nbytes: int) -> None:
        """It is the model's."""

    def _add(self, name: str, tensor: torch.Tensor, role: Role) -> tuple[Entry, View | None]:
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape)
        if not _has_storage(tensor):
            return Entry(name, TensorSpec(shape, dtype), "", None, 0, role), None
        stride, item = tensor.stride(), item_bytes(dtype)
        spec = TensorSpec(shape, dtype, None if is_contiguous(shape, stride) else stride)
        file = self._file(tensor)
        first = int(tensor.storage_offset())
        entry = Entry(name, spec, file, first * item, spec.distinct_numel * item, role)
        return entry, View(file, first, shape, stride, item)

    def _file(self, tensor: torch.Tensor) -> str:
        import torch

        storage = tensor.untyped_storage()
        file = f"{storage.device}:{storage.data_ptr():x}"
        if file not in self._storages:
            self._storages[file] = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return file


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor, Role]]:
    for name, parameter in model.named_parameters():
        yield name, parameter.detach(), Role.PARAMETER
    for name, buffer in model.named_buffers():
        yield name, buffer.detach(), Role.BUFFER


def _has_storage(tensor: torch.Tensor) -> bool:
    """Bytes of its own in memory: neither meta nor sparse nor a subclass that wraps other tensors."""
    import torch

    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return is_plain and not tensor.is_meta and tensor.layout is torch.strided and not _is_lazy(tensor)


def _is_lazy(tensor: Any) -> bool:
    from torch.nn.parameter import is_lazy

    return bool(is_lazy(tensor))


def _shared(entries: list[Entry], owners: Mapping[int, int]) -> Iterator[Entry]:
    from dataclasses import replace

    for number, entry in enumerate(entries):
        yield replace(entry, shared_with=entries[owners[number]].name) if number in owners else entry
