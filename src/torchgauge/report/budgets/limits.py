"""Limits of a budget: which figure may be at most what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchgauge.errors import UsageError
from torchgauge.units import (
    format_bytes,
    format_count,
    format_exact,
    format_joules,
    format_seconds,
    parse_bytes,
    parse_count,
    parse_joules,
    parse_seconds,
)


@dataclass(frozen=True, slots=True)
class Key:
    """A total that can have a limit; `needs` is what must be asked for to have it."""

    parse: Callable[[str], float]
    form: Callable[[Any], str]
    needs: str | None = None


# Up to here a float is every whole number.
_EXACT = 2.0**53
_COUNT, _BYTES = Key(parse_count, format_count), Key(parse_bytes, format_bytes)
KEYS: dict[str, Key] = {
    "params": _COUNT,
    "trainable_params": _COUNT,
    "active_params": _COUNT,
    "param_bytes": _BYTES,
    "buffer_bytes": _BYTES,
    "stored_elements": _COUNT,
    "logical_params": _COUNT,
    "optimizer_elements": _COUNT,
    "stored_bytes": _BYTES,
    "macs": _COUNT,
    "flops": _COUNT,
    "bytes_read": _BYTES,
    "bytes_written": _BYTES,
    "activation_bytes": _BYTES,
    "peak_activation_bytes": _BYTES,
    "saved_activation_bytes": _BYTES,
    "gradient_bytes": _BYTES,
    "optimizer_bytes": _BYTES,
    "total_bytes": _BYTES,
    "ops": Key(parse_count, format_exact),
    "uncounted_ops": Key(parse_count, format_exact),
    "time_s": Key(parse_seconds, format_seconds, needs="inference"),
    "energy_j": Key(parse_joules, format_joules, needs="profile"),
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
