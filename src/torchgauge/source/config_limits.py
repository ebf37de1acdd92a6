"""Limits on the models that a config describes. Its numbers are untrusted: a billion layers take ten characters."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

from torchgauge.errors import TargetError

# Modules, parameters and buffers together. The largest mixtures of experts have about 200,000.
MAX_REGISTERED = 1 << 18
# Sizes and counts: config classes create lists of this length (the kind of each layer, the name of each label).
LARGEST_NUMBER = 1 << 24
# Counts of modules: models have thousands of experts and heads; Doge looks up 16,384 in a table.
LARGEST_COUNT = 1 << 14
# Models have hundreds of layers. A module takes 50 µs or more to build, and a layer has a dozen.
LARGEST_DEPTH = 1 << 11
# Config classes name each label in two dictionaries: 16 million take 2 GiB. ImageNet's largest set has 21,843.
LARGEST_LABELS = 1 << 18
_COUNTS = re.compile(r"expert|n_head|num_.*heads")
_DEPTHS = re.compile(r"layer|block|depth|stage|stack|repeat")
_LABELS = re.compile(r"label|num_classes")
# Numbers that are not sizes: periods, identifiers, maximum lengths.
_NO_SIZE = re.compile(r"theta|base|seed|token|(^|_)ids?$|length|len$|parameters|factor|version|scale|window|^max_")
# Tensors that a constructor creates with values because it reads them; weights are on the meta device.
MAX_REAL_BYTES = 4 << 30


def require_possible_numbers(settings: object, where: str) -> None:
    """Raise `TargetError` for a size or count that no model has, at any depth."""
    waiting = [("", settings)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.items())
        elif isinstance(value, list):
            waiting.extend((name, item) for item in value)
        # Sizes are whole numbers.
        elif isinstance(value, int) and not _NO_SIZE.search(name) and abs(value) > _largest(name):
            # An integer of hundreds of digits cannot be formatted as a float.
            size = f"{value:g}" if abs(value) < 1e300 else "a number of hundreds of digits"
            raise TargetError(f"{where} sets {name} = {size}, more than any model has")


def _largest(name: str) -> int:
    """The largest value of a setting."""
    if "size" not in name:
        for pattern, largest in ((_COUNTS, LARGEST_COUNT), (_DEPTHS, LARGEST_DEPTH), (_LABELS, LARGEST_LABELS)):
            if pattern.search(name):
                return largest
    return LARGEST_NUMBER


@contextmanager
def bounded_building(what: str, real_bytes: float) -> Iterator[None]:
    """Within the context, this thread may not build a model with too many parts or more than `real_bytes` of memory."""
    thread, left = threading.get_ident(), MAX_REGISTERED

    def count(module: nn.Module, name: str, registered: object) -> None:
        nonlocal left
        if threading.get_ident() == thread:
            left -= 1
            if left < 0:
                raise TargetError(f"{what} has more than {MAX_REGISTERED:,} modules, parameters and buffers")

    handles = (
        hooks.register_module_module_registration_hook(count),
        hooks.register_module_parameter_registration_hook(count),
        hooks.register_module_buffer_registration_hook(count),
    )
    try:
        with _Building(what, real_bytes):
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Building(TorchFunctionMode):
    """Adds up the bytes of new tensors that are not on the meta device, and skips filling those that are: torch's
    reference code takes milliseconds for each fill, which has no effect."""

    _FILLS = frozenset(
        (nn.init.normal_, nn.init.uniform_, nn.init.trunc_normal_, nn.init.constant_, nn.init.kaiming_uniform_,
         torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.zero_, torch.Tensor.fill_)
    )  # fmt: skip

    _FACTORIES = frozenset(
        (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.arange, torch.linspace,
         torch.eye, torch.empty_strided, torch.randint, torch.randperm, torch.logspace)
    )  # fmt: skip

    def __init__(self, what: str, limit_bytes: float) -> None:
        super().__init__()
        self._what, self._limit_bytes = what, limit_bytes
        self._made_bytes = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in self._FILLS and args and args[0].is_meta:
            return args[0]
        if func in self._FACTORIES and torch.device(kwargs.get("device") or "cpu").type != "meta":
            described = func(*args, **{name: value for name, value in kwargs.items() if name != "generator"} | _ON_META)
            self._made_bytes += described.nbytes
            if self._made_bytes > self._limit_bytes:
                raise TargetError(f"{self._what} needs more than {MAX_REAL_BYTES >> 30} GiB of memory to be built")
        return func(*args, **kwargs)


_ON_META = {"device": "meta"}
