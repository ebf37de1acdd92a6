"""The columns a module table can show: the keys of a module row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchgauge.facts import View
from torchgauge.report.escape import visible
from torchgauge.units import (
    format_bytes,
    format_count,
    format_exact,
    format_joules,
    format_percent,
    format_seconds,
    format_shape,
)


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    form: Callable[[Any], str]
    is_figure: bool = True


def format_shapes(shapes: list[list[int]]) -> str:
    """The first shape and how many more there are: a cache of keys and values has dozens."""
    if not shapes:
        return "-"
    more = f" +{len(shapes) - 1}" if len(shapes) > 1 else ""
    return format_shape(shapes[0]) + more


def _text(value: str | None) -> str:
    return visible(value) if value else "-"


def _names(names: list[str]) -> str:
    return ", ".join(visible(name) for name in names) or "-"


def _structure(value: Any) -> str:
    return "-" if value is None else visible(json.dumps(value, ensure_ascii=False, default=str))


def _about_joules(value: float | None) -> str:
    return "-" if value is None else f"≈ {format_joules(value)}"


COLUMNS: dict[str, Column] = {
    "path": Column("Path", _text, is_figure=False),
    "aliases": Column("Aliases", _names, is_figure=False),
    "type": Column("Type", _text, is_figure=False),
    "depth": Column("Depth", format_exact),
    "calls": Column("Calls", format_exact),
    "params": Column("Params", format_count),
    "trainable_params": Column("Trainable", format_count),
    "param_bytes": Column("Param bytes", format_bytes),
    "input_shapes": Column("Input", format_shapes, is_figure=False),
    "output_shapes": Column("Output", format_shapes, is_figure=False),
    "macs": Column("MACs", format_count),
    "flops": Column("FLOPs", format_count),
    "bytes_read": Column("Bytes read", format_bytes),
    "bytes_written": Column("Bytes written", format_bytes),
    "activation_bytes": Column("Activations", format_bytes),
    "ops": Column("Ops", format_exact),
    "time_s": Column("Time", format_seconds),
    "self_time_s": Column("Self", format_seconds),
    "time_share": Column("share", format_percent),
    "energy_j": Column("Energy", format_joules),
    "estimated_energy_j": Column("Estimated", _about_joules),
    "estimated_energy_low_j": Column("at least", _about_joules),
    "estimated_energy_high_j": Column("at most", _about_joules),
    "inputs": Column("Inputs", _structure, is_figure=False),
    "outputs": Column("Outputs", _structure, is_figure=False),
}

DEFAULT_COLUMNS = ("output_shapes", "params", "macs", "flops")
STORED_COLUMNS = ("params", "param_bytes")
MEASURED_COLUMNS = ("params", "macs", "flops", "time_s", "self_time_s", "time_share")


def columns_of(view: View, chosen: tuple[str, ...]) -> tuple[str, ...]:
    """The columns chosen; of the default ones those that the capture can fill."""
    if chosen != DEFAULT_COLUMNS:
        return chosen
    if not view.capture.has_code:
        return STORED_COLUMNS
    return MEASURED_COLUMNS if view.capture.measured and view.capture.measured.modules else chosen
