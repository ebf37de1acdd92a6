"""What to do about the model: the largest expected gain first, each with its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchgauge.report.escape import visible
from torchgauge.report.layout import Line, Span, wrap
from torchgauge.report.options import Options
from torchgauge.report.sections import heading
from torchgauge.report.verified_text import is_withdrawn, measured_text, plan_lines, withdrawn_lines
from torchgauge.report.weight_sections import more_lines
from torchgauge.units import format_bytes, format_count, format_exact, format_percent, format_seconds, format_value
from torchgauge.view import View

SHOWN = 8
# Of code that names every place; the JSON, Markdown and HTML reports have all of it.
CODE_LINES, CODE_WIDTH = 10, 320
_QUANTITIES = {
    "time_s": "of the time", "energy_j": "of the energy", "bytes_moved": "of the bytes moved", "flops": "of the FLOPs",
    "peak_activation_bytes": "of the peak of activations", "param_bytes": "of the parameters' bytes",
    "stored_bytes": "of the stored bytes",
}  # fmt: skip
_APART = ("places", "count")


def advice(view: View, options: Options) -> list[Line]:
    return [*advice_lines(view.advice, options, SHOWN), *plan_lines(view.plan, options)]


def every_advice(view: View, options: Options) -> list[Line]:
    return [*advice_lines(view.advice, options, len(view.advice)), *plan_lines(view.plan, options)]


def advice_lines(found: Sequence[Mapping[str, Any]], options: Options, limit: int) -> list[Line]:
    standing = [row for row in found if not is_withdrawn(row)]
    lines: list[Line] = []
    for number, row in enumerate(standing[:limit], start=1):
        lead = f"{number}. "
        lines += wrap(visible(_headline(row)), options.width, lead=(Span(lead),))
        indent = (Span(" " * len(lead)),)
        before, after = _details(row)
        lines += [line for text in before for line in wrap(visible(text), options.width, lead=indent, style="dim")]
        # Not wrapped: a line that is cut in two cannot be pasted.
        lines += [(*indent, Span(visible(text), "dim")) for text in code_lines(row["code"] or "")]
        lines += [line for text in after for line in wrap(visible(text), options.width, lead=indent, style="dim")]
    lines += [*more_lines(len(standing) - limit), *withdrawn_lines(found, options)]
    return [heading("Advice"), *lines] if lines else []


def _headline(row: Mapping[str, Any]) -> str:
    return f"{place_text(row)}: {row['recommendation']} ({gain_text(row['expected_gain'])}; {row['rule']})"


def _details(row: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What stands before the code, and what behind it."""
    shown = {name: value for name, value in row["evidence"].items() if name not in _APART}
    figures = ", ".join(text for name, value in shown.items() if (text := figure_text(name, value)))
    measured, risk = measured_text(row), f"risk: {row['risk']}; confidence: {row['confidence']}"
    return [figures] if figures else [], [measured, risk] if measured else [risk]


def code_lines(code: str) -> list[str]:
    """Its beginning, which says what it does; names of many places are for formats that are not read line by line."""
    lines = [line for line in code.splitlines() if line.strip()]
    shown = [line if len(line) <= CODE_WIDTH else f"{line[:CODE_WIDTH]}…" for line in lines[:CODE_LINES]]
    return [*shown, *([f"… {format_exact(len(lines) - CODE_LINES)} more lines"] if len(lines) > CODE_LINES else [])]


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
    words = name.removesuffix("_bytes").removesuffix("_per_s").removesuffix("_s").replace("_", " ")
    if value is None or isinstance(value, Mapping):
        return None
    if isinstance(value, list | tuple):
        return f"{words} {', '.join(map(str, value))}" if 0 < len(value) <= 4 else f"{words}: {len(value)}"
    if isinstance(value, bool | str):
        return f"{words} {value}"
    return f"{words} {_number(name, value)}"


def _number(name: str, value: float) -> str:
    if name.endswith("_per_s"):
        return f"{format_count(value)}/s"
    if name.endswith("_s"):
        return format_seconds(value)
    if "share" in name.split("_"):
        return format_percent(value)
    if "bytes" in name:
        return format_bytes(value)
    return format_exact(value) if isinstance(value, int) else format_value(value)
