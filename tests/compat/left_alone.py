"""State that an adapter must leave unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module


@contextmanager
def left_alone(model: nn.Module) -> Iterator[None]:
    before = _state(model)
    try:
        yield
    finally:
        assert _state(model) == before


def _state(model: nn.Module) -> dict[str, Any]:
    return {
        "tensors": {
            name: (id(t), t.detach().numpy().tobytes()) for name, t in model.state_dict(keep_vars=True).items()
        },
        "modes": [module.training for module in model.modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        "global hooks": (len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks)),
        "call": [type(module).__call__ for module in model.modules()],
        "gradients": [parameter.grad for parameter in model.parameters()],
        "grad mode": torch.is_grad_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "random": torch.get_rng_state().numpy().tobytes(),
    }
