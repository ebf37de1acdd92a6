"""Limits of a budget: which figure may be at most what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchgauge.errors import UsageError
from torchgauge.facts import View
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
_FIT_FIGURES = ("allocated_bytes", "reserved_bytes", "used_bytes", "required_bytes")


class BudgetKeys(dict[str, Key]):
    """The totals by their names, and `fit.DEVICE.FIGURE` for any device."""

    def __missing__(self, key: str) -> Key:
        if device_and_figure(key) is None:
            raise KeyError(key)
        return Key(parse_bytes, FORMS[Unit.BYTES])

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (isinstance(key, str) and device_and_figure(key) is not None)


def device_and_figure(key: str) -> tuple[str, str] | None:
    """`fit.h200.used_bytes`."""
    device, _, figure = key.removeprefix("fit.").rpartition(".")
    return (device, figure) if key.startswith("fit.") and device and figure in _FIT_FIGURES else None


KEYS = BudgetKeys(
    (figure.key, Key(_PARSERS.get(figure.unit, parse_count), FORMS[figure.unit], _NEEDS.get(figure.known)))
    for figure in figures_of(TOTALS)
    if figure.unit.is_number
)


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
        told = f"{', '.join(KEYS)}, fit.DEVICE.({'|'.join(_FIT_FIGURES)})"
        raise UsageError(f"there is no figure '{key}' to limit; choose from: {told}")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UsageError(f"the limit of '{key}' is a number or a text like 30M, not {value!r}")
    most = float(KEYS[key].parse(value) if isinstance(value, str) else value)
    if not 0 <= most < math.inf:
        raise UsageError(f"the limit of '{key}' cannot be {value}")
    return Limit(key, int(most) if most.is_integer() and most < _EXACT else most)


def limits(budgets: Mapping[str, float | str]) -> list[Limit]:
    return [limit(key, value) for key, value in budgets.items()]


def analysis_needs(wanted: list[Limit]) -> dict[str, Any]:
    """The arguments of an analysis that knows all these figures."""
    needs = {KEYS[entry.key].needs for entry in wanted}
    devices = list(dict.fromkeys(found[0] for entry in wanted if (found := device_and_figure(entry.key))))
    known = {"inference": bool(needs & {"inference", "profile"}), "profile": "profile" in needs, "on": devices}
    return {name: value for name, value in known.items() if value}


def figure_of(view: View, key: str) -> float | None:
    """A total, or what the fit on a device says."""
    found = device_and_figure(key)
    if found is None:
        return view.totals[key]
    device, figure = found
    return next((row[figure] for row in view.capture.fit if row["device"] == device), None)
