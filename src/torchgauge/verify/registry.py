"""One registry: the name of a rule -> the transformation that applies its advice.

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

from torchgauge.verify.trial import Applied, Trial

Apply = Callable[[Trial], Applied]
# The order in which several are applied: code is written for the model's own modules, compilers want the last word.
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
