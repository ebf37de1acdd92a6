"""Options of a report, and the columns of its module table: the keys of a module row."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from torchgauge.errors import UsageError
from torchgauge.facts import View
from torchgauge.facts.figures import ESTIMATED, MODULES, Figure, Unit, figures_of
from torchgauge.report.layout import PLAIN_WIDTH
from torchgauge.units import (
    format_bytes,
    format_count,
    format_exact,
    format_joules,
    format_percent,
    format_rate,
    format_seconds,
    format_shape,
    format_value,
    visible,
)

ABOUT = "≈ "  # before an estimate


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    form: Callable[[Any], str]
    is_figure: bool = True

    @classmethod
    def of(cls, figure: Figure) -> Column:
        form = FORMS[figure.unit]
        if figure.origin == ESTIMATED and figure.unit.is_number:
            return cls(figure.short, lambda value: "-" if value is None else f"{ABOUT}{form(value)}")
        return cls(figure.short, form, figure.unit.is_number)


def format_shapes(shapes: list[list[int]]) -> str:
    """The first shape and how many more there are: a cache of keys and values has dozens."""
    if not shapes:
        return "-"
    more = f" +{len(shapes) - 1}" if len(shapes) > 1 else ""
    return format_shape(shapes[0]) + more


def _structure(value: Any) -> str:
    return "-" if value is None else visible(json.dumps(value, ensure_ascii=False, default=str))


# How a value is written, by its unit.
FORMS: Mapping[Unit, Callable[[Any], str]] = {
    Unit.COUNT: format_count,
    Unit.WHOLE: format_exact,
    Unit.BYTES: format_bytes,
    Unit.SECONDS: format_seconds,
    Unit.JOULES: format_joules,
    Unit.SHARE: format_percent,
    Unit.NUMBER: format_value,
    Unit.RATE: format_rate,
    Unit.TEXT: lambda text: visible(text) if text else "-",
    Unit.NAMES: lambda names: ", ".join(map(visible, names)) or "-",
    Unit.SIZES: _structure,
    Unit.NUMBERS: _structure,
    Unit.SHAPES: format_shapes,
    Unit.STRUCTURE: _structure,
}


COLUMNS: dict[str, Column] = {figure.key: Column.of(figure) for figure in figures_of(MODULES)}

DEFAULT_COLUMNS = ("output_shapes", "params", "macs", "flops")
STORED_COLUMNS = ("params", "param_bytes")
MEASURED_COLUMNS = ("params", "macs", "flops", "time_s", "self_time_s", "time_share")


def columns_of(view: View, chosen: tuple[str, ...]) -> tuple[str, ...]:
    """The chosen columns; of the default ones, those that the capture can fill."""
    if chosen != DEFAULT_COLUMNS:
        return chosen
    if not view.capture.has_code:
        return STORED_COLUMNS
    return MEASURED_COLUMNS if view.capture.measured and view.capture.measured.modules else chosen


class Detail(IntEnum):
    """A screen, a document, or every parameter and every op."""

    BRIEF = 0
    LONG = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class Options:
    """`depth` None: as deep as fits a page; `sort` None: the order of registration; `ops`: also the ops, distributions
    and coverage; `all_advice`: all of the advice, not the first few; `tensors`: a list of stored tensors in place of
    modules. `detail` is set by the format."""

    depth: int | None = None
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    sort: str | None = None
    width: int = PLAIN_WIDTH
    ops: bool = False
    all_advice: bool = False
    tensors: bool = False
    detail: Detail = Detail.BRIEF

    def rows(self, brief: int, long: int) -> int:
        """How many rows a ranking has."""
        return long if self.detail else brief

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth < 0:
            raise UsageError(f"depth must be at least 0 (0: the model alone, 1: its children, …), not {self.depth}")
        for name in (*self.columns, *([self.sort] if self.sort else [])):
            if name not in COLUMNS:
                raise UsageError(f"there is no column '{name}'; choose from: {', '.join(COLUMNS)}")
