"""Uninitialised lazy modules: analysed on an initialised copy on the meta device, never on the user's model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedTensorMixin

from torchgauge.capture.ghost import Ghost
from torchgauge.capture.infer import meta_tensor
from torchgauge.capture.structure import map_tensors


def is_lazy(model: nn.Module) -> bool:
    return any(
        isinstance(tensor, UninitializedTensorMixin) for tensor in (*model.parameters(), *model.buffers())
    )


def meta_copy(model: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers are on the meta device; those still uninitialised will become meta too."""
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if not isinstance(tensor, UninitializedTensorMixin):
            on_meta = torch.empty_like(tensor, device="meta")
            is_parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(on_meta, tensor.requires_grad) if is_parameter else on_meta
    return copy.deepcopy(model, memo).to("meta")


@contextmanager
def initialise_off_the_record() -> Iterator[None]:
    """Let lazy modules see plain meta tensors while they make their parameters, so that only the forward is recorded."""
    original = LazyModuleMixin._infer_parameters

    def infer_parameters(self: Any, module: Any, args: Any, kwargs: Any = None) -> None:
        with torch.utils._python_dispatch._disable_current_modes():
            plain = map_tensors((args, kwargs or {}), _plain)
            original(self, module, *plain)

    LazyModuleMixin._infer_parameters = infer_parameters  # type: ignore[method-assign]
    try:
        yield
    finally:
        LazyModuleMixin._infer_parameters = original  # type: ignore[method-assign]


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return meta_tensor(tensor.spec) if isinstance(tensor, Ghost) else tensor
