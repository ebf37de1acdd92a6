"""Advice in words: its place, its expected gain, the figures of its evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchgauge.units import (
    format_bytes,
    format_count,
    format_decibels,
    format_exact,
    format_percent,
    format_seconds,
    format_shape,
    format_value,
    format_whole_percent,
)

_LESS = {
    "peak_activation_bytes": "less memory for activations", "param_bytes": "less memory for parameters",
    "stored_bytes": "less to store", "bytes_moved": "fewer bytes moved", "flops": "fewer FLOPs",
}  # fmt: skip


def effect_text(row: Mapping[str, Any]) -> str:
    """`about 4 % faster (0.6 ms of 14 ms)`."""
    return "likely a bug" if row.get("kind") == "bug" else gain_text(row["expected_gain"])


def gain_text(gain: Mapping[str, Any] | None) -> str:
    if gain is None:
        return "gain not known"
    low, high, middle = gain["low"], gain["high"], (gain["low"] + gain["high"]) / 2
    share = high if low == 0 else middle
    percent = format_whole_percent(share) if share >= 0.01 else format_percent(share)
    lead = "up to" if low == 0 else "about"
    if gain["quantity"] == "time_s":
        seconds = gain.get("seconds")
        part = f" ({format_seconds(seconds)} of {format_seconds(seconds / middle)})" if seconds and middle else ""
        device = gain.get("device")
        place = "" if device is None else " on a GPU" if device == "cuda" else f" on {device}"
        return f"{lead} {percent} faster{place}{part}"
    less = _LESS.get(gain["quantity"], f"of {gain['quantity']}")
    nbytes = gain.get("bytes")
    return f"{lead} {percent} {less}" if nbytes is None else f"{lead} {format_bytes(nbytes)} {less} ({percent})"


def range_text(row: Mapping[str, Any]) -> str | None:
    """`predicted 2.0 % to 6.1 %`; None where the middle says it all."""
    gain = row["expected_gain"]
    if gain is None or gain["low"] == gain["high"]:
        return None
    return f"{gain.get('basis', 'predicted')} {format_percent(gain['low'])} to {format_percent(gain['high'])}"


def place_text(row: Mapping[str, Any]) -> str:
    """`layer1.0.bn1 and 52 more, resnet.py:155`."""
    where, count = row["where"], row["evidence"].get("count", 1)
    name = where["weight"] or where["module"] or "the model"
    several = f"{name} and {format_exact(count - 1)} more" if count > 1 else name
    return f"{several}, {where['source']}" if where.get("source") else several


def figure_text(name: str, value: Any) -> str | None:
    """A figure in its unit; None for what is not known or too long for a line."""
    if value is None or isinstance(value, Mapping):
        return None
    if isinstance(value, list | tuple):
        return _list_text(name, value)
    if isinstance(value, bool | str):
        return f"{_words(name)} {value}"
    if _SHARES & set(name.split("_")):
        return f"{_words(name)} {format_percent(value)}"
    ending = next((ending for ending in _UNITS if name.endswith(ending)), None)
    return f"{_words(name)} {_number(name, value)}" if ending is None else _with_unit(name, value, ending)


_SHARES = {"share", "efficiency"}
# By the end of a name, whose place the unit takes.
_UNITS: Mapping[str, Callable[[float], str]] = {
    "_flops_per_s": lambda value: f"{format_count(value)}FLOP/s",
    "_bytes_per_s": lambda value: f"{format_count(value)}B/s",
    "_per_s": lambda value: f"{format_count(value)}/s",
    "_s": format_seconds,
    "_db": format_decibels,
    "_bytes": format_bytes,
}


def _with_unit(name: str, value: float, ending: str) -> str:
    return f"{_words(name.removesuffix(ending))} {_UNITS[ending](value)}"


def _words(name: str) -> str:
    """Variables of the environment are called what they are called."""
    return name if name.isupper() else name.replace("_", " ")


def _list_text(name: str, values: Sequence[Any]) -> str:
    if name.split("_")[-1] == "shape":
        return f"{_words(name)} {format_shape(list(values))}"
    return f"{_words(name)} {', '.join(map(str, values))}" if 0 < len(values) <= 4 else f"{_words(name)}: {len(values)}"


def _number(name: str, value: float) -> str:
    if "bytes" in name.split("_"):
        return format_bytes(value)
    return format_exact(value) if isinstance(value, int) else format_value(value)
