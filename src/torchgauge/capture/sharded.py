"""Modules that `fully_shard` (FSDP2) has split over processes: a replica of them with whole parameters.

FSDP2's hooks gather a module's parameters before its forward and write to the modules that they were registered for,
which are the user's. The replica has the whole parameters from the start and none of these hooks, so an analysis needs
no other process; it shows the work of the whole model, without the communication.

States and shards are private classes of torch, which differ between releases: `Any` here.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
from torch import nn

from torchgauge.capture.copier import Copier
from torchgauge.source.modules import all_modules

ParameterSlot = tuple[
    dict[str, nn.Parameter | None], str
]  # the registry of a module, and the name of a parameter in it

_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state"
_REMARK = "fully_shard: analysed as one process with whole parameters; the communication is not counted"


def gather_parameters(model: nn.Module, copier: Copier) -> None:
    """Make the replica of `model` run without FSDP2, with the same casts."""
    if _STATE not in sys.modules:  # fully_shard was not called
        return
    from torch.distributed.fsdp import FSDPModule

    sharded: dict[int, tuple[Any, list[nn.Module]]] = {}
    for module in all_modules(model):
        for state in _states_of(module):
            sharded.setdefault(id(state), (state, []))[1].append(module)
    for state, modules in sharded.values():
        places: list[ParameterSlot] = []
        for shard in _shards_of(state):
            whole, info = _whole(shard, copier), shard._module_info
            owners = zip((info.module, *info.shared_modules), (info.param_name, *info.shared_param_names), strict=True)
            places += [(copier.copy(owner)._parameters, name) for owner, name in owners]
            for registry, name in places[-1 - len(info.shared_modules) :]:
                registry[name] = whole
        for module in modules:
            replica: Any = copier.copy(module)
            replica.__class__ = next(kind for kind in type(replica).__mro__ if not issubclass(kind, FSDPModule))
            _replace_hooks(replica, state, places)
    if sharded:
        copier.remarks.append(_REMARK)


def is_split(model: nn.Module) -> bool:
    """Whether other processes hold parts of the parameters."""
    if _STATE not in sys.modules:
        return False
    return any(
        _is_split(shard) for module in all_modules(model) for state in _states_of(module) for shard in _shards_of(state)
    )


def _is_split(shard: Any) -> bool:
    return bool(shard.sharded_param._local_tensor.numel() != prod(shard._orig_size))


def _states_of(module: nn.Module) -> list[Any]:
    if not module._forward_pre_hooks:  # most modules
        return []
    kind = sys.modules[_STATE].FSDPState
    owners = map(_owner, module._forward_pre_hooks.values())
    return [owner for owner in owners if isinstance(owner, kind)]


def _owner(hook: Callable[..., object]) -> object:
    """The object that a hook is a method of; hooks of several modules are wrapped in functions."""
    if not hasattr(hook, "__self__"):
        hook = inspect.unwrap(hook, stop=lambda inner: hasattr(inner, "__self__"))
    return getattr(hook, "__self__", None)


def _shards_of(state: Any) -> Iterator[Any]:
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # torch before 2.11 has one
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    for group in groups:
        yield from group.fsdp_params


def _whole(shard: Any, copier: Copier) -> nn.Parameter:
    """The parameter as the forward sees it: real where this process has all of it, on meta where others have parts."""
    local = shard.sharded_param._local_tensor
    if not _is_split(shard):
        whole = copier.copy(local).detach().view(shard._orig_size)
    else:
        whole = torch.empty(shard._orig_size, dtype=local.dtype, device="meta")
    # The spec of a tensor that is tensor parallel too; torch before 2.10 calls it `_tp_spec`.
    spec = getattr(shard, "_unsharded_dtensor_spec", None) or getattr(shard, "_tp_spec", None)
    if spec is not None:
        from torch.distributed.tensor import DTensor

        whole = DTensor(whole, spec, requires_grad=False)
    return nn.Parameter(whole, requires_grad=shard.sharded_param.requires_grad)


def _replace_hooks(replica: nn.Module, state: Any, places: list[ParameterSlot]) -> None:
    for hooks in (replica._forward_pre_hooks, replica._forward_hooks):
        for key, hook in list(hooks.items()):
            if _owner(hook) is state:
                del hooks[key]
    policy = state._mp_policy
    if policy.param_dtype is None and policy.output_dtype is None:
        return
    kept: list[nn.Parameter | None] = []

    def cast(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if policy.param_dtype is not None:
            kept[:] = [registry[name] for registry, name in places]
            for (registry, name), tensor in zip(places, kept, strict=True):
                if tensor is not None and tensor.dtype.is_floating_point:
                    registry[name] = tensor.to(policy.param_dtype)  # type: ignore[assignment]
        return state._cast_forward_inputs(args, kwargs)

    def cast_back(module: nn.Module, args: object, output: object) -> object:
        for (registry, name), tensor in zip(places, kept, strict=False):
            registry[name] = tensor
        return state._cast_output_dtype(output)

    replica.register_forward_pre_hook(cast, prepend=True, with_kwargs=True)
    replica.register_forward_hook(cast_back)
