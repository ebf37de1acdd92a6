"""Read the parameters and buffers of a live model like files, one per storage."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from torchgauge.checkpoint import Entry, Index, Role
from torchgauge.checkpoint.dtypes import item_bytes
from torchgauge.checkpoint.sharing import View, find_owners
from torchgauge.errors import FormatError
from torchgauge.facts import TensorSpec
from torchgauge.facts.strides import is_contiguous
from torchgauge.weights.plan import Batch
from torchgauge.weights.reader import Bytes

if TYPE_CHECKING:
    import torch
    from torch import nn


class LiveTensors:
    """A `Reader` of a model's storages. On an accelerator, only the requested pieces are copied."""

    def __init__(self, model: nn.Module) -> None:
        self._storages: dict[str, torch.Tensor] = {}
        entries, views = [], []
        parameters = ((name, tensor, Role.PARAMETER) for name, tensor in model.named_parameters())
        buffers = ((name, tensor, Role.BUFFER) for name, tensor in model.named_buffers())
        for name, tensor, role in chain(parameters, buffers):
            entry, view = self._describe(name, tensor.detach(), role)
            entries.append(entry)
            views.append(view)
        owners = find_owners(views)
        shared = tuple(
            replace(entry, shared_with=entries[owners[number]].name) if number in owners else entry
            for number, entry in enumerate(entries)
        )
        self.index = Index("", "module", tuple(self._storages), shared)

    def read(self, file: str, offset: int, into: Bytes) -> None:
        storage = self._storages[file]
        if offset + len(into) > len(storage):
            raise FormatError(f"its bytes end at {offset + len(into):,}, beyond its storage of {len(storage):,}")
        into[:] = storage[offset : offset + len(into)].cpu().numpy()

    def prefetch(self, batch: Batch) -> None:
        """Memory needs no prefetching."""

    def release(self, file: str, offset: int, nbytes: int) -> None:
        """The model owns its memory."""

    def _describe(self, name: str, tensor: torch.Tensor, role: Role) -> tuple[Entry, View | None]:
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        if not _has_storage(tensor):
            return Entry(name, TensorSpec(shape, dtype), "", None, 0, role), None
        stride, item = tensor.stride(), item_bytes(dtype)
        spec = TensorSpec(shape, dtype, None if is_contiguous(shape, stride) else stride)
        storage, first = tensor.untyped_storage(), int(tensor.storage_offset())
        file = f"{storage.device}:{storage.data_ptr():x}"
        if file not in self._storages:
            import torch

            self._storages[file] = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        entry = Entry(name, spec, file, first * item, spec.distinct_numel * item, role)
        return entry, View(file, first, shape, stride, item)


def _has_storage(tensor: torch.Tensor) -> bool:
    """Whether the values are in memory: not on meta, not sparse, not lazy, not a subclass that wraps other tensors."""
    import torch
    from torch.nn.parameter import is_lazy

    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return is_plain and not tensor.is_meta and tensor.layout is torch.strided and not is_lazy(tensor)
