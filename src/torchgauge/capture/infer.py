"""Outputs of an op from the metadata of its inputs: our shape rule, else torch's meta kernel, else its fake kernel."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from torchgauge.capture.fake_tensor import FakeTensor, Spec
from torchgauge.capture.signals import DataDependent
from torchgauge.capture.structure import tensors_in

_META = torch.device("meta")
_REAL_ELEMENTS = 1 << 27


def infer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the op would return, with meta (or fake) tensors in the place of tensors. Raises what torch raises."""
    try:
        return func(*_on_meta(args), **_on_meta(_without_device(func, kwargs)))
    except NotImplementedError:
        return _fake_kernel(func, args, kwargs)


def meta_tensor(spec: Spec) -> torch.Tensor:
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=_META)


def _on_meta(value: Any) -> Any:
    kind = type(value)
    if kind is FakeTensor:
        return meta_tensor(value.spec)
    if kind is list:
        return [_on_meta(item) for item in value]
    if kind is tuple:
        return tuple(_on_meta(item) for item in value)
    if kind is dict:
        return {name: _on_meta(item) for name, item in value.items()}
    return value


def _without_device(func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    is_factory = _is_factory(func)
    if not is_factory and "device" not in kwargs and "pin_memory" not in kwargs:
        return kwargs
    changed = dict(kwargs)
    if is_factory or "device" in changed:
        changed["device"] = _META
    changed.pop("pin_memory", None)
    return changed


@cache
def _is_factory(func: Any) -> bool:
    """Whether it makes a tensor from none: a graph that leaves out the device would get a real one."""
    arguments = func._schema.arguments
    takes_tensors = any("Tensor" in str(argument.type) for argument in arguments)
    return not takes_tensors and any(argument.name == "device" for argument in arguments)


def _fake_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Slow to import and to run, so the last resort; it knows ops that have no meta kernel. Those without any shape rule
    # it runs for real, on zeros of the same shapes.
    elements = sum(fake.numel() for fake in tensors_in((args, kwargs)))
    if elements > _REAL_ELEMENTS:
        raise NotImplementedError(f"{func} has no shape rule, and its {elements:,} elements are too many to run it")
    from torch._subclasses import fake_tensor

    mode = fake_tensor.FakeTensorMode(allow_fallback_kernels=True)
    # Its cache lasts as long as the process and compares arguments, which packed weights cannot be.
    mode.cache_enabled = False
    with mode:
        try:
            return func(*_as_fake(args), **_as_fake(kwargs))
        except (fake_tensor.DynamicOutputShapeException, fake_tensor.DataDependentOutputException):
            raise DataDependent(str(func)) from None


def _as_fake(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        spec = value.spec
        return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)
    if isinstance(value, list | tuple):
        return type(value)(_as_fake(item) for item in value)
    if isinstance(value, dict):
        return {name: _as_fake(item) for name, item in value.items()}
    return value
