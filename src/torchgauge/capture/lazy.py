"""Uninitialised lazy modules: analysed on a copy on the meta device that one plain call initialises."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import (  # type: ignore[attr-defined]
    UninitializedBuffer,
    UninitializedParameter,
    UninitializedTensorMixin,
)

from torchgauge.capture.process_state import process_state_kept
from torchgauge.capture.twin import Copier, in_mode
from torchgauge.errors import InputError
from torchgauge.source.modules import all_modules

_Uninitialized: tuple[Any, ...] = (UninitializedParameter, UninitializedBuffer)


def is_lazy(model: nn.Module) -> bool:
    """Whether a parameter or buffer waits for its shape, in a lazy module or in one that makes it in its forward."""
    # Not `isinstance(…, UninitializedParameter)`: the metaclass of parameters makes that slow.
    return any(
        isinstance(tensor, UninitializedTensorMixin)
        for module in all_modules(model)
        for registry in (module._parameters, module._buffers)
        for tensor in registry.values()
    )


def initialised_copy(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    """A copy whose lazy modules have taken their shapes from a call; the user's model is not touched."""
    memo = {id(tensor): _on_meta(tensor) for tensor in (*model.parameters(), *model.buffers())}
    duplicate = copy.deepcopy(model, memo)
    args, kwargs = Copier(lambda tensor: torch.empty_like(tensor, device="meta")).copy((args, kwargs))
    try:
        with process_state_kept(), torch.no_grad(), in_mode(duplicate, train=False):
            duplicate(*args, **kwargs)
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError) as error:
        said = str(error).strip().splitlines()
        raise InputError(
            "the model has lazy modules that are not initialised, and a copy could not be initialised on the meta "
            f"device ({said[0] if said else type(error).__name__}): call the model once with real inputs first"
        ) from error
    return duplicate


def _on_meta(tensor: Any) -> Any:
    for kind in _Uninitialized:
        if isinstance(tensor, kind):
            return kind(requires_grad=tensor.requires_grad, device="meta", dtype=tensor.dtype)
    on_meta = torch.empty_like(tensor, device="meta")
    return nn.Parameter(on_meta, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else on_meta
