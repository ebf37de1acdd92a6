"""What to do about the model: the largest expected gain first, each with its evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchgauge.facts import View
from torchgauge.report.escape import visible
from torchgauge.report.layout import Line, Span, wrap
from torchgauge.report.options import Options
from torchgauge.report.sections import heading
from torchgauge.report.verified_text import is_withdrawn, measured_text, plan_lines, withdrawn_lines
from torchgauge.report.weight_sections import more_lines
from torchgauge.units import (
    format_bytes,
    format_count,
    format_decibels,
    format_exact,
    format_percent,
    format_seconds,
    format_shape,
    format_value,
)

SHOWN = 5
CODE_BESIDE = 2
_QUANTITIES = {
    "time_s": "of the time", "energy_j": "of the energy", "bytes_moved": "of the bytes moved", "flops": "of the FLOPs",
    "peak_activation_bytes": "of the peak besides parameters and buffers", "param_bytes": "of the parameters' bytes",
    "stored_bytes": "of the stored bytes",
}  # fmt: skip
_APART = ("places", "count")


def advice(view: View, options: Options) -> list[Line]:
    return [*advice_lines(view.advice, options, SHOWN), *plan_lines(view.plan, options)]


def every_advice(view: View, options: Options) -> list[Line]:
    return [*advice_lines(view.advice, options, len(view.advice)), *plan_lines(view.plan, options)]


def advice_lines(found: Sequence[Mapping[str, Any]], options: Options, limit: int) -> list[Line]:
    """The advice as a list to read through; code of more than a line or two stands below it."""
    standing = [row for row in found if not is_withdrawn(row)]
    lines: list[Line] = []
    below: list[Line] = []
    for number, row in enumerate(standing[:limit], start=1):
        lead = f"{number}. "
        lines += wrap(visible(_headline(row)), options.width, lead=(Span(lead),))
        indent = (Span(" " * len(lead)),)
        before, after = _details(row)
        lines += [line for text in before for line in wrap(visible(text), options.width, lead=indent, style="dim")]
        # Neither cut nor wrapped: it is for pasting.
        code = [text for text in (row["code"] or "").splitlines() if text.strip()]
        if len(code) <= CODE_BESIDE:
            lines += [(*indent, Span(visible(text))) for text in code]
        else:
            below += [(), heading(f"Code for advice {number}: {visible(row['rule'])}")]
            below += [(Span(visible(text)),) for text in code]
        lines += [line for text in after for line in wrap(visible(text), options.width, lead=indent, style="dim")]
    lines += [*more_lines(len(standing) - limit), *withdrawn_lines(found, options)]
    return [heading("Advice"), *lines, *below] if lines else []


def _headline(row: Mapping[str, Any]) -> str:
    return f"{place_text(row)}: {row['recommendation']} ({gain_text(row['expected_gain'])}; {row['rule']})"


def _details(row: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What stands before the code, and what behind it. Of several places the evidence is that of one."""
    is_whole = row["evidence"].get("count", 1) == 1
    shown = {name: value for name, value in row["evidence"].items() if name not in _APART} if is_whole else {}
    figures = ", ".join(text for name, value in shown.items() if (text := figure_text(name, value)))
    measured, risk = measured_text(row), f"risk: {row['risk']}; confidence: {row['confidence']}"
    return [figures] if figures else [], [measured, risk] if measured else [risk]


def place_text(row: Mapping[str, Any]) -> str:
    where, count = row["where"], row["evidence"].get("count", 1)
    name = where["weight"] or where["module"] or "the model"
    return f"{name} and {format_exact(count - 1)} more" if count > 1 else name


def gain_text(gain: Mapping[str, Any]) -> str:
    low, high = format_percent(gain["low"]), format_percent(gain["high"])
    span = high if low == high else f"{low} to {high}"
    return f"{span} {_QUANTITIES.get(gain['quantity'], 'of ' + gain['quantity'])}"


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
