"""Functions of torch that read values where no dispatch mode sees it, patched for the time of a run.

`torch.tensor([a, b])` of fake tensors reads their memory; `one_hot` of them leaves out the checks that it makes of
others.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any

import torch
from torch import nn

from torchgauge.capture.fake_tensor import FakeTensor
from torchgauge.capture.refusals import refuse_classes
from torchgauge.capture.values import is_known
from torchgauge.source.modules import all_modules

_MAKERS: tuple[tuple[Any, str, int], ...] = (
    (torch, "tensor", 0),
    (torch, "as_tensor", 0),
    (torch, "asarray", 0),
    (torch.Tensor, "new_tensor", 1),
)


_one_hot = torch.nn.functional.one_hot


@contextmanager
def elements_given(model: nn.Module | None = None) -> Iterator[None]:
    """Tensor factories accept lists with fake tensors in this thread: known ones with their content, else the result
    is as unknown as they are. Wherever the code of the model's classes has `one_hot`, it refuses unfit classes."""
    thread = threading.get_ident()

    def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if type(tensor) is FakeTensor and threading.get_ident() == thread:
            refuse_classes(tensor, num_classes)
        return _one_hot(tensor, num_classes)

    def giving(original: Callable[..., Any], place: int) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            data = args[place] if len(args) > place else None
            fakes = list(_fakes(data)) if isinstance(data, list | tuple) else []
            if not fakes or threading.get_ident() != thread:
                return original(*args, **kwargs)
            if kwargs.get("dtype") is None and place == 0:
                kwargs["dtype"] = reduce(torch.promote_types, map(_type, _leaves(data)))
            made = original(*args[:place], _numbers(data), *args[place + 1 :], **kwargs)
            if not all(map(is_known, fakes)):
                made.value = None
            return made

        return make

    with ExitStack() as stack:
        for owner, name, place in _MAKERS:
            original = getattr(owner, name)
            if name in vars(owner):
                stack.callback(setattr, owner, name, original)
            else:
                stack.callback(delattr, owner, name)
            setattr(owner, name, giving(original, place))
        modules = all_modules(model) if model is not None else []
        code = {id(names): names for module in modules if (names := _globals_of(type(module))) is not None}
        for names in (vars(torch._C._nn), vars(torch.nn.functional), *code.values()):
            for name in [name for name, value in names.items() if value is _one_hot]:
                stack.callback(names.__setitem__, name, _one_hot)
                names[name] = one_hot
        yield


def _globals_of(kind: type) -> dict[str, Any] | None:
    """The names that the code of a class sees, None for torch's own."""
    module = sys.modules.get(kind.__module__)
    return None if module is None or kind.__module__.startswith("torch.") else vars(module)


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, list | tuple):
        for item in data:
            yield from _leaves(item)
    else:
        yield data


def _fakes(data: Any) -> Iterator[FakeTensor]:
    return (leaf for leaf in _leaves(data) if type(leaf) is FakeTensor)


def _type(leaf: Any) -> torch.dtype:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype
    return torch.bool if isinstance(leaf, bool) else torch.int64 if isinstance(leaf, int) else torch.get_default_dtype()


def _numbers(data: Any) -> Any:
    if isinstance(data, list | tuple):
        return [_numbers(item) for item in data]
    if type(data) is not FakeTensor:
        return data
    return data.tolist() if is_known(data) else torch.zeros(data.shape).tolist()
