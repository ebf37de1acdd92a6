"""The transformation that applies the advice of each rule: a function from `Trial` to `Applied`.

To verify the advice of a custom rule, register a function; the code that it returns is run on a copy of the model,
timed against the original, and shown in the plan:

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
from typing import TYPE_CHECKING, Any, TypedDict, cast

import torch
from torch import nn

from torchgauge.facts import Capture
from torchgauge.registry import Registry

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Advice

Inputs = tuple[tuple[Any, ...], dict[str, object]]
Evidence = Mapping[str, Any]  # the figures that a rule gives

SCRIPT = "a script module cannot be changed; verify the original model"


class NotApplicableError(Exception):
    """A piece of advice cannot be applied automatically; the message is the reason that is reported."""


class Place(TypedDict):
    """A place of the advice, and what its rule found there."""

    module: str | None
    ops: list[int]
    weight: str | None
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Trial:
    """A piece of advice to try. `model` is a copy to inspect; the returned code changes the model. `row` is the advice
    as in the JSON document; the other fields describe how the model is run."""

    model: nn.Module
    row: Advice
    args: tuple[Any, ...]
    kwargs: Mapping[str, object]
    device: torch.device
    capture: Capture
    train: bool = False

    @property
    def evidence(self) -> Evidence:
        return self.row["evidence"]

    @property
    def places(self) -> list[Place]:
        """Every place of the advice: module, ops, weight, and the evidence."""
        alone = {**self.row["where"], "evidence": self.evidence}
        return cast("list[Place]", list(self.evidence.get("places") or [alone]))

    def module(self, path: str | None) -> nn.Module | None:
        """None if the model that runs has no such module; an exported program has different ones."""
        if isinstance(self.model, torch.jit.ScriptModule):
            raise NotApplicableError(SCRIPT)
        try:
            return self.model.get_submodule(path or "")
        except AttributeError:
            return None


@dataclass(frozen=True, slots=True)
class Applied:
    """How to apply advice. `code` are statements that may use `torch`, change or replace `model`, and use `inputs`, the
    tensors of a call. They are run on a copy and shown in the plan.

    `inputs` are the inputs of the changed model, None if unchanged; one run of it does the work of `samples` runs of
    the original. `held_bytes` returns the bytes of the changed model if they are not those of its parameters and
    buffers. `in_plan`: it makes the model faster and can be part of a plan. `places` is the number of places of the
    advice where it was applied, None for all. `note` describes what was measured, if that is not the code of the
    advice.
    """

    code: str
    inputs: Inputs | None = None
    samples: int = 1
    held_bytes: Callable[[nn.Module], int] | None = None
    in_plan: bool = True
    places: int | None = None
    note: str | None = None

    def remark(self, places: int) -> str | None:
        """A remark on the figures, for advice with this number of places."""
        part = f"applied at {self.places} of {places} places" if (self.places or places) < places else None
        return ", ".join(text for text in (part, self.note) if text) or None


Apply = Callable[[Trial], Applied]
# The order in which several are applied: changes of the model's modules first, compilers last.
STAGES = ("structure", "weights", "layout", "precision", "switches", "compile", "graph")
# Allowed relative errors (L2) of the outputs: only the order of additions differs; products with 10 (TF32) or 7
# (bfloat16) mantissa bits; weights that are approximated.
ROUNDING, TF32, BFLOAT16, LOSSY = 1e-3, 1e-2, 5e-2, 5e-2
# The error of rounding alone in models of these types.
ROUNDING_BY_TYPE: Mapping[str, float] = MappingProxyType({"torch.float16": 5e-3, "torch.bfloat16": 3e-2})


@dataclass(frozen=True, slots=True)
class Transformation:
    rule: str
    apply: Apply
    stage: str
    tolerance: float


TRANSFORMATIONS: Registry[str, Transformation] = Registry("transformation for the rule")


def transformation(rule: str, *, stage: str = "structure", tolerance: float = ROUNDING) -> Callable[[Apply], Apply]:
    if stage not in STAGES:
        raise ValueError(f"no stage '{stage}'; one of: {', '.join(STAGES)}")
    return TRANSFORMATIONS.register_as(lambda apply: Transformation(rule, apply, stage, tolerance), rule)


def load_transformations() -> None:
    """Import every file in `transformations`, which registers its transformations."""
    from torchgauge.verify import transformations

    for module in iter_modules(transformations.__path__):
        import_module(f"{transformations.__name__}.{module.name}")
