"""Limits of a budget: which figure may be at most what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchgauge.errors import UsageError
from torchgauge.facts.figures import ENERGY, INFERENCE, TOTALS, Known, Unit, figures_of
from torchgauge.report.columns import FORMS
from torchgauge.units import parse_bytes, parse_count, parse_joules, parse_seconds


@dataclass(frozen=True, slots=True)
class Key:
    """A total that can have a limit; `needs` is what must be asked for to have it."""

    parse: Callable[[str], float]
    form: Callable[[Any], str]
    needs: str | None = None


# Up to here a float is every whole number.
_EXACT = 2.0**53
_PARSERS: Mapping[Unit, Callable[[str], float]] = {
    Unit.BYTES: parse_bytes,
    Unit.SECONDS: parse_seconds,
    Unit.JOULES: parse_joules,
}
_NEEDS: Mapping[Known, str] = {INFERENCE: "inference", ENERGY: "profile"}
KEYS: dict[str, Key] = {
    figure.key: Key(_PARSERS.get(figure.unit, parse_count), FORMS[figure.unit], _NEEDS.get(figure.known))
    for figure in figures_of(TOTALS)
    if figure.unit.is_number
}


@dataclass(frozen=True, slots=True)
class Limit:
    key: str
    most: float

    @property
    def text(self) -> str:
        return KEYS[self.key].form(self.most)


def parse_limit(text: str) -> Limit:
    """`params=30M`."""
    key, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"'{text}' is not a limit; write it like params=30M")
    return limit(key.strip(), value.strip())


def limit(key: str, value: float | str) -> Limit:
    """A plain number is in the unit of the key: elements, bytes, seconds, joules."""
    if key not in KEYS:
        raise UsageError(f"there is no figure '{key}' to limit; choose from: {', '.join(KEYS)}")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UsageError(f"the limit of '{key}' is a number or a text like 30M, not {value!r}")
    most = float(KEYS[key].parse(value) if isinstance(value, str) else value)
    if not 0 <= most < math.inf:
        raise UsageError(f"the limit of '{key}' cannot be {value}")
    return Limit(key, int(most) if most.is_integer() and most < _EXACT else most)


def limits(budgets: Mapping[str, float | str]) -> list[Limit]:
    return [limit(key, value) for key, value in budgets.items()]


def measuring_needs(wanted: list[Limit]) -> dict[str, bool]:
    """The arguments of an analysis that knows all these figures."""
    needs = {KEYS[entry.key].needs for entry in wanted}
    return {"inference": bool(needs & {"inference", "profile"}), "profile": "profile" in needs}
