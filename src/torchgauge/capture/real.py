"""The real run, for models whose path depends on their data: same recorder, real arithmetic, everything restored."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchgauge.capture.attention_blocks import FLEX_OPS, computed_scores
from torchgauge.capture.op_call import Arguments, Op, OpCall, is_composite, op_info
from torchgauge.capture.paths import ModulePaths
from torchgauge.capture.plan import MATRIX_PRODUCTS, describe
from torchgauge.capture.recorder import Recorder, spec_of_real
from torchgauge.capture.structure import is_subclass, storage_key, storage_of, tensors_in
from torchgauge.capture.triton_kernels import is_wrapped_launch, triton_op_body, wrapped_launch
from torchgauge.facts import Allocation

# Gets the index of an op and its results as soon as they are computed.
Observe = Callable[[int, Sequence[torch.Tensor]], None]


class RealRun(TorchDispatchMode):
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, recorder: Recorder, paths: ModulePaths, observe: Observe | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self._observe = observe
        self._names = {storage_key(owned.tensor): owned.name for owned in paths.owned}
        self._is_in_op = False
        self._alive: dict[int, weakref.ref[torch.UntypedStorage | torch.Tensor]] = {}
        self._writers: dict[int, int] = {}
        # Live storages: the op that allocated each, and its bytes.
        self._allocations: dict[int, Allocation] = {}
        # Tensors that the model did not make are restored: their first content by storage. It is copied when an op is
        # about to write to them or their memory is handed out; that of buffers at once, because batch norm writes to
        # its statistics without declaring it.
        self._foreign: dict[int, object] = {}  # storages by key, kept so that no other gets their key
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        for owned in paths.owned:
            self._note_foreign(owned.tensor)
            if owned.is_buffer:
                self._remember(owned.tensor)

    def undo(self) -> None:
        """Put back what the model wrote to its parameters, buffers, inputs, and tensors from elsewhere."""
        # The first content last: two storages may share memory (DLPack).
        for storage, content in reversed(self._before.values()):
            storage.copy_(content, non_blocking=False)

    def admit(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count an input as live memory."""
        self._track(tensor, is_input=not self.recorder.ops)
        return tensor

    def lend(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note that a tensor may be written to from now on."""
        if storage_key(tensor) in self._foreign or self._is_new(tensor):
            self._remember(tensor)
        return tensor

    def mark(self, tensor: torch.Tensor, origin: int) -> int:
        """Like a run on fake tensors: memory that is passed twice keeps the first origin."""
        self._note_foreign(tensor)
        return self._writers.setdefault(storage_key(tensor), origin)

    def writer_of(self, tensor: torch.Tensor) -> int | None:
        """The op that last wrote the memory of a tensor."""
        return self._writers.get(storage_key(tensor))

    def note_host_read(self, call: str, tensor: torch.Tensor) -> None:
        self.recorder.note_host_read(call, self.writer_of(tensor), is_weight=storage_key(tensor) in self._names)

    def storage_of(self, tensor: torch.Tensor) -> tuple[int, Allocation]:
        """A number for the storage of a tensor, and its allocation."""
        key = storage_key(tensor)
        return key, self._allocations.get(key, (-1, tensor.nbytes))

    def launch(self, call: OpCall[torch.Tensor]) -> None:
        """Note that a Triton kernel is about to be launched past the dispatcher; within an op it is part of the op."""
        if not self._is_in_op:
            self._record(call, lambda: None)

    def __torch_dispatch__(
        self, func: Op, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Arguments | None = None
    ) -> object:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload) and is_wrapped_launch(func):
            return self._record(wrapped_launch(func, kwargs), partial(func, **kwargs))
        body = triton_op_body(func)
        if body is not None:
            with self:
                return body(*args, **kwargs)
        info = op_info(func)
        call = OpCall(func, info, args, kwargs, list(tensors_in((args, kwargs))))
        if info.name in FLEX_OPS:
            call = replace(call, facts={"computed_scores": computed_scores(call, lambda tensor: tensor)})
        if info.name in MATRIX_PRODUCTS and len(call.tensors) > 1:
            call = replace(call, facts={"meeting_pairs": meeting_pairs(*call.tensors[-2:])})
        if any(map(is_subclass, call.tensors)):
            return NotImplemented  # by the subclass, in ops on the tensors that it is made of
        if call.info.name == "aten::_nested_tensor_from_mask_left_aligned":
            return False  # padding is counted in full, as in a run on fake tensors
        is_nested = any(tensor.is_nested for tensor in call.tensors)  # nested tensors have their own kernels
        if is_composite(func) and not is_nested:
            with self:
                return func.decompose(*args, **kwargs)  # type: ignore[attr-defined]
        return self._record(call, partial(func, *args, **kwargs))

    def _record(self, call: OpCall[torch.Tensor], run: Callable[[], object]) -> object:
        for tensor in () if call.info.name == "aten::lift_fresh" else call.tensors:  # it makes a tensor of a number
            if self._is_new(tensor):
                self._note_foreign(tensor)
        written = call.written
        for tensor in written:
            self.lend(tensor)
        # An op may change the shape of its own argument: describe the arguments first.
        read = [spec_of_real(tensor) for tensor in call.read]
        producers = tuple(self._writers.get(storage_key(tensor)) for tensor in call.read)
        if self.recorder.phase == "backward":
            for tensor in call.distinct:
                key = storage_key(tensor)
                if key in self._allocations:
                    self.recorder.note_backward_read(key, self._allocations[key])
        self._is_in_op = True
        try:
            result = run()
        finally:
            self._is_in_op = False
        outputs = list(tensors_in(result))
        if self._observe is not None:
            self._observe(len(self.recorder.ops), outputs)
        made = [tensor for tensor in outputs if self._is_new(tensor)]
        signature = describe(
            call,
            outputs=tuple(spec_of_real(tensor) for tensor in outputs),
            read=read,
            activation_bytes=sum([self._track(tensor) for tensor in outputs]),
            spec_of=spec_of_real,
            result=result,
        )
        names = tuple(name for tensor in call.tensors if (name := self._names.get(storage_key(tensor))))
        for tensor in made if call.info.changes_metadata else (*made, *written):
            self._writers[storage_key(tensor)] = len(self.recorder.ops)
        self.recorder.record(signature, names, producers)
        return result

    def _is_new(self, tensor: torch.Tensor) -> bool:
        key = storage_key(tensor)
        return key not in self._alive and key not in self._foreign

    def _note_foreign(self, tensor: torch.Tensor) -> None:
        """Note that a tensor existed before the run: its memory is not the model's, and its content is restored."""
        self._foreign[storage_key(tensor)] = storage_of(tensor) if tensor.layout is torch.strided else tensor

    def _track(self, tensor: torch.Tensor, *, is_input: bool = False) -> int:
        """Add a storage seen for the first time to the live memory, until it dies; its bytes."""
        if not self._is_new(tensor):
            return 0
        key = storage_key(tensor)
        # A sparse tensor has no storage: it lives as long as its object.
        storage = storage_of(tensor) if tensor.layout is torch.strided else tensor
        nbytes = spec_of_real(storage).nbytes if isinstance(storage, torch.Tensor) else storage.nbytes()
        ledger = self.recorder.ledger
        alive, writers, allocations = self._alive, self._writers, self._allocations

        born = -1 if is_input else len(self.recorder.ops)

        def died(_: object) -> None:
            ledger.remove(born, nbytes)
            alive.pop(key, None)
            writers.pop(key, None)
            allocations.pop(key, None)

        allocations[key] = (born, nbytes)
        alive[key] = weakref.ref(storage, died)
        ledger.add(born, nbytes)
        return nbytes

    def _remember(self, tensor: torch.Tensor) -> None:
        key = storage_key(tensor)
        if key not in self._before and tensor.layout is torch.strided:
            storage = storage_of(tensor)
            self._before[key] = (storage, storage.clone())


def meeting_pairs(left: torch.Tensor, right: torch.Tensor) -> int | None:
    """Products of stored elements that add up to the product of two sparse matrices; None for other tensors."""
    if left.dim() != 2 or right.dim() != 2 or torch.strided in (left.layout, right.layout):
        return None
    columns, rows = (
        matrix.to_sparse_coo().coalesce().indices()[1 - place] for place, matrix in enumerate((left, right))
    )
    return int(torch.bincount(rows, minlength=right.shape[0])[columns].sum())
