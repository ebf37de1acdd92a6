"""Optimizers as they run on a CUDA device: the foreach implementation unless another one is asked for."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from torchgauge.errors import UsageError

MakeOptimizer = Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]

# Settings of an optimizer given by name, where they are not torch's defaults. Without momentum SGD has no state at all.
_USUAL: Mapping[str, Mapping[str, float]] = {"SGD": {"lr": 1e-3, "momentum": 0.9}}
# These loop over the parameters by default (`foreach=None` means False there).
_LOOPS = frozenset(("Adafactor", "Muon"))


def optimizer_names() -> dict[str, type[torch.optim.Optimizer]]:
    """By lower-case name the optimizers of torch that take a step without a closure or sparse gradients."""
    left_out = {"Optimizer", "LBFGS", "SparseAdam"}
    found = {name: value for name, value in vars(torch.optim).items() if inspect.isclass(value)}
    return {
        name.lower(): kind
        for name, kind in sorted(found.items())
        if issubclass(kind, torch.optim.Optimizer) and name not in left_out
    }


def make_optimizer(asked: object, *, fused: bool | None = None, foreach: bool | None = None) -> MakeOptimizer:
    """`asked` is a name, a class, an instance (its class and settings are taken) or a function of the parameters."""
    settings: dict[str, object] = {}
    if isinstance(asked, str):
        known = optimizer_names()
        if asked.lower() not in known:
            near = difflib.get_close_matches(asked.lower(), known, 3, 0.4) or sorted(known)
            raise UsageError(f"no optimizer '{asked}'; did you mean one of: {', '.join(near)}?")
        kind: Callable[..., torch.optim.Optimizer] = known[asked.lower()]
        settings |= _USUAL.get(known[asked.lower()].__name__, {})
    elif isinstance(asked, torch.optim.Optimizer):
        kind, settings = type(asked), dict(asked.defaults)
    elif callable(asked):
        kind = asked
    else:
        raise UsageError(f"optimizer is a name, a class or an instance of torch.optim.Optimizer, not {asked!r}")
    name = getattr(kind, "__name__", getattr(getattr(kind, "func", None), "__name__", ""))
    taken = inspect.signature(kind).parameters
    if fused and "fused" not in taken:
        raise UsageError(f"{name} has no fused implementation")
    if fused is not None and "fused" in taken:
        settings |= {"fused": fused}
    elif settings.get("fused"):
        pass
    elif foreach is not None and "foreach" in taken:
        settings |= {"foreach": foreach}
    elif "foreach" in taken and settings.get("foreach") is None and name not in _LOOPS:
        settings |= {"foreach": True}  # what torch takes on CUDA by default
    settings = {key: value for key, value in settings.items() if key in taken}
    return partial(kind, **settings)
