"""One registry: the name of a rule -> the transformation that applies its advice, a function from `Trial` to `Applied`.

A rule of your own brings its transformation with one more function; the code it gives back is run on a copy of the
model, timed beside the original, and shown in the plan:

    @transformation("my-rule")
    def apply(trial: Trial) -> Applied:
        return Applied("".join(f"model.get_submodule({place['module']!r}).fast = True\\n" for place in trial.places))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from torchgauge.facts import Capture

Inputs = tuple[tuple[Any, ...], dict[str, object]]
Row = Mapping[str, Any]  # of advice, or a place of it, as in the JSON document

SCRIPT = "a script cannot be changed: verify the original model"


class NotApplicableError(Exception):
    """A piece of advice cannot be applied automatically; the message is the reason that is reported."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A piece of advice to be tried. `model` is a copy to look at: what changes it is the code that is given back.
    `row` is the advice as in the JSON document; the rest is what the model is run with."""

    model: nn.Module
    row: Row
    args: tuple[Any, ...]
    kwargs: Mapping[str, object]
    device: torch.device
    capture: Capture
    train: bool = False

    @property
    def places(self) -> list[Row]:
        """Every place that the advice is about: module, ops, weight, and the evidence there."""
        alone = {**self.row["where"], "evidence": self.row["evidence"]}
        return list(self.row["evidence"].get("places") or [alone])

    def module(self, path: str | None) -> nn.Module | None:
        """None where the model that runs has no such module: an export that was made code has others."""
        if isinstance(self.model, torch.jit.ScriptModule):
            raise NotApplicableError(SCRIPT)
        try:
            return self.model.get_submodule(path or "")
        except AttributeError:
            return None


@dataclass(frozen=True, slots=True)
class Applied:
    """How to apply it: `code` are statements that may use `torch` and turn `model` into what is to run; where they use
    `inputs` these are the tensors of a call. They are run on a copy, and are what the plan shows.

    `inputs` is what it is called with then, None for what the model was; `samples` of these are as much work as one of
    the model's. `held_bytes` tells the bytes of the changed model where its parameters and buffers do not.
    `in_plan`: it belongs into a function that makes the model faster. `places`: at how many of those that the advice
    names, None for all. `note`: what was measured, where that is not the code that the advice shows.
    """

    code: str
    inputs: Inputs | None = None
    samples: int = 1
    held_bytes: Callable[[nn.Module], int] | None = None
    in_plan: bool = True
    places: int | None = None
    note: str | None = None

    def told(self, places: int) -> str | None:
        """A remark on the figures of advice that names this many places."""
        part = f"applied at {self.places} of {places} places" if (self.places or places) < places else None
        return ", ".join(text for text in (part, self.note) if text) or None


Apply = Callable[[Trial], Applied]
# The order in which several are applied: code is written for the model's own modules, compilers come last.
STAGES = ("structure", "weights", "layout", "precision", "switches", "compile", "graph")
# Relative errors (L2) of the outputs that may remain: where only the order of additions differs, where products keep 10
# bits (TF32) or 8 (bfloat16) of mantissa, where weights are given up.
ROUNDING, TF32, BFLOAT16, LOSSY = 1e-3, 1e-2, 5e-2, 5e-2
# What rounding alone leaves in models of these types.
ROUNDING_BY_TYPE: Mapping[str, float] = MappingProxyType({"torch.float16": 5e-3, "torch.bfloat16": 3e-2})


@dataclass(frozen=True, slots=True)
class Transformation:
    rule: str
    apply: Apply
    stage: str
    tolerance: float


TRANSFORMATIONS: dict[str, Transformation] = {}


def transformation(rule: str, *, stage: str = "structure", tolerance: float = ROUNDING) -> Callable[[Apply], Apply]:
    if stage not in STAGES:
        raise ValueError(f"no stage '{stage}'; one of: {', '.join(STAGES)}")

    def register(apply: Apply) -> Apply:
        if rule in TRANSFORMATIONS:
            raise ValueError(f"there are two transformations for '{rule}'")
        TRANSFORMATIONS[rule] = Transformation(rule, apply, stage, tolerance)
        return apply

    return register


def load_transformations() -> None:
    """Every file in `transformations` registers what it holds when it is imported."""
    from torchgauge.verify import transformations

    for module in iter_modules(transformations.__path__):
        import_module(f"{transformations.__name__}.{module.name}")
