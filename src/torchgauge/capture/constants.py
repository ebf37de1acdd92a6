"""`torch.tensor([a, b])` of fake tensors: torch reads their memory without a dispatch mode, so it is patched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any

import torch

from torchgauge.capture.fake_tensor import FakeTensor
from torchgauge.capture.values import is_known

_MAKERS: tuple[tuple[Any, str, int], ...] = (
    (torch, "tensor", 0),
    (torch, "as_tensor", 0),
    (torch, "asarray", 0),
    (torch.Tensor, "new_tensor", 1),
)


@contextmanager
def elements_given() -> Iterator[None]:
    """Tensor factories accept lists with fake tensors in this thread: known ones with their content, else the result
    is as unknown as they are."""
    thread = threading.get_ident()

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
        yield


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
