"""What to do about the model: likely bugs, then the largest gains, each in three lines and its code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
    format_whole_percent,
)

SHOWN = 5
CODE_BESIDE = 2
# Before its code, a piece of advice takes no more lines of the terminal.
MOST_LINES = 3
_LESS = {
    "peak_activation_bytes": "less memory for activations", "param_bytes": "less memory for parameters",
    "stored_bytes": "less to store", "bytes_moved": "fewer bytes moved", "flops": "fewer FLOPs",
}  # fmt: skip


def advice(view: View, options: Options) -> list[Line]:
    limit = len(view.advice) if options.all_advice else SHOWN
    return [*advice_lines(view.advice, options, limit), *option_lines(view, options), *plan_lines(view.plan, options)]


def every_advice(view: View, options: Options) -> list[Line]:
    return advice(view, replace(options, all_advice=True))


def advice_lines(found: Sequence[Mapping[str, Any]], options: Options, limit: int) -> list[Line]:
    """The advice as a list to read through; code of more than a line or two stands below it."""
    standing = [row for row in found if not is_withdrawn(row)]
    lines: list[Line] = []
    below: list[Line] = []
    for number, row in enumerate(standing[:limit], start=1):
        lead = f"{number}. "
        lines += _piece(row, lead, options.width)
        # Neither cut nor wrapped: it is for pasting.
        code = [text for text in (row["code"] or "").splitlines() if text.strip()]
        if len(code) <= CODE_BESIDE:
            lines += [(Span(" " * len(lead)), Span(visible(text))) for text in code]
        else:
            below += [(), heading(f"Code for advice {number}: {visible(row['rule'])}")]
            below += [(Span(visible(text)),) for text in code]
        if measured := measured_text(row):
            lines += wrap(visible(measured), options.width, lead=(Span(" " * len(lead)),), style="dim")
    lines += [*more_lines(len(standing) - limit), *withdrawn_lines(found, options)]
    return [heading("Advice"), *lines, *below] if lines else []


def option_lines(view: View, options: Options) -> list[Line]:
    """Choices that every model has, a line each."""
    standing = [row for row in view.options if not is_withdrawn(row)]
    lines: list[Line] = []
    for row in standing:
        measured = f"; {measured_text(row)}" if row.get("verified") else ""
        text = f"{effect_text(row)}: {row['recommendation']} ({row['rule']}){measured}"
        lines += _cut(wrap(visible(text), options.width, lead=(Span("- "),)), MOST_LINES)
    lines += withdrawn_lines(view.options, options)
    return [(), heading("Options"), *lines] if lines else []


def _piece(row: Mapping[str, Any], lead: str, width: int) -> list[Line]:
    """What to do and what it brings; where, how sure that is, and the risk."""
    head = wrap(visible(f"{effect_text(row)}: {row['recommendation']}"), width, lead=(Span(lead),))
    head = _cut(head, MOST_LINES - 1)
    said = (f"{row['rule']} at {place_text(row)}", range_text(row), f"risk: {row['risk']}")
    text, indent = "; ".join(part for part in said if part), (Span(" " * len(lead)),)
    return [*head, *_cut(wrap(visible(text), width, lead=indent, style="dim"), MOST_LINES - len(head))]


def _cut(lines: list[Line], most: int) -> list[Line]:
    if len(lines) <= most:
        return lines
    *kept, last = lines[: max(most, 0)] or [()]
    if not last:
        return []
    *before, span = last
    return [*kept, (*before, Span(f"{span.text[:-1].rstrip()}…", span.style))]


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
        return f"{lead} {percent} faster{part}"
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
