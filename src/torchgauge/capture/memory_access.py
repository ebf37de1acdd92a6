"""Ways from a tensor to its memory around the dispatcher: no run sees `weight.data.numpy()[:] = 0`.

During a run, code of its thread that asks for the memory of a tensor gets what the run answers: a run on fake tensors
gives a copy, a real run saves the content first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchgauge.capture.fake_tensor import FakeTensor

# Other ways come down to these: `__array__` and `np.asarray` call `numpy`, ctypes is given a `data_ptr`.
_WAYS: tuple[tuple[Any, str], ...] = (
    *((torch.Tensor, name) for name in ("numpy", "data_ptr", "untyped_storage", "storage", "_typed_storage")),
    *((torch.Tensor, name) for name in ("__dlpack__", "share_memory_")),
    *((torch._C, "_to_dlpack"), (torch.utils.dlpack, "to_dlpack")),
)
_DLPACK = ("_to_dlpack", "to_dlpack")
# Calls that bring values to the host; a model that makes them makes a device wait. `print`, `str` and formats come down
# to `__repr__`.
_TO_HOST = ("cpu", "numpy", "tolist")
_PRINTS = "__repr__"


@contextmanager
def memory_lent(
    lend: Callable[[torch.Tensor], torch.Tensor], note: Callable[[str], None] = lambda _: None
) -> Iterator[None]:
    """`lend` gives the tensor whose memory is handed out for that of a tensor with data; `note` receives the
    names of calls that bring values to the host."""
    thread = threading.get_ident()
    is_lending = False

    def guarded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def access(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal is_lending
            if type(tensor) is FakeTensor and name in _DLPACK:
                return tensor.__dlpack__()
            if threading.get_ident() != thread or type(tensor) is FakeTensor or is_lending:
                return original(tensor, *args, **kwargs)
            is_lending = True  # `storage` calls `untyped_storage`
            try:
                return original(lend(tensor), *args, **kwargs)
            finally:
                is_lending = False

        return access

    def noted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread:
                note(name)
            return original(tensor, *args, **kwargs)

        return call

    def printed(original: Callable[..., str]) -> Callable[..., str]:
        def call(tensor: Any, **kwargs: Any) -> str:
            if threading.get_ident() != thread:
                return original(tensor, **kwargs)
            note("print")
            with _disable_current_modes():  # the text is made of many small ops, which are not the model's
                return original(tensor, **kwargs)

        return call

    with ExitStack() as stack:
        for kind in (torch.Tensor, FakeTensor):
            stack.callback(setattr, kind, _PRINTS, vars(kind)[_PRINTS])
            setattr(kind, _PRINTS, printed(vars(kind)[_PRINTS]))
        for place, name in _WAYS:
            if name in vars(place):
                stack.callback(setattr, place, name, vars(place)[name])
            else:  # inherited
                stack.callback(delattr, place, name)
            setattr(place, name, guarded(name, getattr(place, name)))
        for name in _TO_HOST:
            original = getattr(torch.Tensor, name)
            if name in vars(torch.Tensor):
                stack.callback(setattr, torch.Tensor, name, original)
            else:
                stack.callback(delattr, torch.Tensor, name)
            setattr(torch.Tensor, name, noted(name, original))
        yield
