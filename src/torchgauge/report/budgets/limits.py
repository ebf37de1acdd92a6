"""Limits of a budget: which figure may be at most what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchgauge.errors import UsageError
from torchgauge.facts import View
from torchgauge.facts.figures import ENERGY, INFERENCE, TOTALS, Known, Members, Unit, figures_of
from torchgauge.report.options import FORMS
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
# By the key of the document: figures of the predictions for a device.
_PREDICTED: Mapping[str, Mapping[str, Unit]] = {
    "fit": dict.fromkeys(("allocated_bytes", "reserved_bytes", "used_bytes", "required_bytes"), Unit.BYTES),
    "forecast": {"predicted_time_s": Unit.SECONDS, "predicted_energy_j": Unit.JOULES},
}


class Predicted(NamedTuple):
    """A figure of the predictions for a device; without one, for the first that the model was analysed for."""

    table: str
    device: str | None
    figure: str

    @classmethod
    def of(cls, key: str) -> Predicted | None:
        """`fit.h200.used_bytes`, `forecast.h200.predicted_time_s`, `predicted_time_s`."""
        if key in _PREDICTED["forecast"]:
            return cls("forecast", None, key)
        table, _, rest = key.partition(".")
        device, _, figure = rest.rpartition(".")
        return cls(table, device, figure) if device and figure in _PREDICTED.get(table, ()) else None

    def row(self, view: View) -> Members | None:
        rows = view.capture.fit if self.table == "fit" else view.capture.forecast
        return next((row for row in rows if self.device in (None, row["device"])), None)


class BudgetKeys(dict[str, Key]):
    """The totals by their names, and predictions for any device."""

    def __missing__(self, key: str) -> Key:
        found = Predicted.of(key)
        if found is None:
            raise KeyError(key)
        unit = _PREDICTED[found.table][found.figure]
        return Key(_PARSERS[unit], FORMS[unit])

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (isinstance(key, str) and Predicted.of(key) is not None)


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
        predictions = (f"{table}.DEVICE.({'|'.join(figures)})" for table, figures in _PREDICTED.items())
        told = ", ".join([*KEYS, *_PREDICTED["forecast"], *predictions])
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
    predicted = (Predicted.of(entry.key) for entry in wanted)
    devices = list(dict.fromkeys(found.device for found in predicted if found is not None and found.device))
    known = {"inference": bool(needs & {"inference", "profile"}), "profile": "profile" in needs, "on": devices}
    return {name: value for name, value in known.items() if value}


def figure_of(view: View, key: str) -> float | None:
    """A total, or what the fit on a device says."""
    found = Predicted.of(key)
    if found is None:
        return view.totals[key]
    row = found.row(view)
    return None if row is None else row[found.figure]
