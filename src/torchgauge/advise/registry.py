"""The registry of rules: from evidence about the model to advice, and from the row of a tensor to recommendations.

@rule("my-rule", family="mine")
def my_rule(evidence: Evidence) -> Iterator[Advice]:
    ...


@tensor_rule("tensor-mine")
def my_tensor_rule(row: TensorRow) -> Iterator[str]:
    ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.merging import merged
from torchgauge.advise.record import CONFIDENCES, QUANTITIES, Advice
from torchgauge.errors import UsageError

Finder = Callable[[Evidence], Iterator[Advice]]
# The row of a tensor in the JSON document; figures may be missing or null.
TensorRow = Mapping[str, Any]
TensorFinder = Callable[[TensorRow], Iterator[str]]
# How far a gain is believed when advice is put in order.
_BELIEF = dict(zip(CONFIDENCES, (1.0, 0.7, 0.4), strict=True))


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    family: str
    find: Finder


@dataclass(frozen=True, slots=True)
class TensorRule:
    """`weights_only`: not for buffers, optimizer state and the codes of a packing."""

    name: str
    find: TensorFinder
    weights_only: bool


RULES: dict[str, Rule] = {}
TENSOR_RULES: dict[str, TensorRule] = {}


def rule(name: str, *, family: str) -> Callable[[Finder], Finder]:
    def register(find: Finder) -> Finder:
        if name in RULES:
            raise ValueError(f"there are two rules '{name}'")
        RULES[name] = Rule(name, family, find)
        return find

    return register


def tensor_rule(name: str, *, weights_only: bool = True) -> Callable[[TensorFinder], TensorFinder]:
    def register(find: TensorFinder) -> TensorFinder:
        if name in TENSOR_RULES:
            raise ValueError(f"there are two tensor rules '{name}'")
        TENSOR_RULES[name] = TensorRule(name, find, weights_only)
        return find

    return register


def recommend(row: TensorRow) -> list[str]:
    """The recommendations of all tensor rules; a rule is silent if the row lacks its figures."""
    load_rules()
    is_weight = row.get("role") in (None, "parameter") and row.get("logical_elements") is None
    rules = (rule for rule in TENSOR_RULES.values() if is_weight or not rule.weights_only)
    return [text for rule in rules for text in rule.find(row)]


def advise(evidence: Evidence, silence: Sequence[str] = ()) -> list[Advice]:
    """What all rules say that are not silenced: equal advice merged, the largest expected gain first."""
    load_rules()
    check_names(silence)
    found = (advice for name, entry in RULES.items() if name not in silence for advice in entry.find(evidence))
    return ranked(merged(found))


def ranked(found: Iterable[Advice]) -> list[Advice]:
    return sorted(found, key=_rank)


def _rank(advice: Advice) -> tuple[float, int, str, str, tuple[int, ...]]:
    gain, where = advice.expected_gain, advice.where
    believed = gain.middle * _BELIEF[advice.confidence]
    return (-believed, QUANTITIES.index(gain.quantity), advice.rule, where.module or where.weight or "", where.ops)


def check_names(silence: Sequence[str]) -> None:
    """Names to silence that no rule has are a mistake of the user's."""
    if not silence:
        return
    load_rules()
    unknown = [name for name in silence if name not in RULES]
    if unknown:
        raise UsageError(f"no rule '{unknown[0]}'; there are: {', '.join(sorted(RULES))}")


@cache
def load_rules() -> None:
    """Every file in `rules` registers its rules when it is imported."""
    from torchgauge.advise import rules

    for module in iter_modules(rules.__path__):
        import_module(f"{rules.__name__}.{module.name}")
