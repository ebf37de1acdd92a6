"""Advice that was applied and measured: what it gained, what did not hold, and the plan to copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchgauge.report.escape import visible
from torchgauge.report.layout import Line, Span, wrap
from torchgauge.report.options import Options
from torchgauge.report.sections import heading
from torchgauge.units import format_percent, format_value

_SAVED = {
    "time_s": "of the time", "peak_activation_bytes": "of the peak memory of a run",
    "param_bytes": "of the bytes it holds", "stored_bytes": "of the bytes to store",
}  # fmt: skip


def is_withdrawn(row: Mapping[str, Any]) -> bool:
    verified = row.get("verified")
    return verified is not None and not verified["kept"]


def measured_text(row: Mapping[str, Any]) -> str | None:
    """What applying it gave; None where nobody tried."""
    verified = row.get("verified")
    if verified is None:
        reason = row.get("unverified")
        return None if reason is None else f"not measured: {reason}"
    note = f" ({verified['note']})" if verified.get("note") else ""
    return f"measured{note}: {gained_text(verified)}{_time_text(verified)}; {error_text(verified['output_error'])}"


def gained_text(figures: Mapping[str, Any]) -> str:
    """`saves 12.3 % of the time (11.0 % to 13.4 %)`."""
    gain, interval = figures["gain"], figures["ci95"]
    if gain is None:
        return "no result"
    what = _SAVED[figures.get("quantity") or "time_s"] + (" of a sample" if figures.get("samples", 1) > 1 else "")
    amount = f"saves {format_percent(gain)}" if gain >= 0 else f"costs {format_percent(-gain)}"
    if interval is None or interval[0] == interval[1]:
        return f"{amount} {what}"
    low, high = sorted(interval if gain >= 0 else (-interval[0], -interval[1]))
    return f"{amount} {what} (95 % interval: {format_percent(low)} to {format_percent(high)})"


def _time_text(verified: Mapping[str, Any]) -> str:
    """Of what was advised for memory: its price."""
    time = verified.get("time")
    return f"; {gained_text(time)}" if time and verified["quantity"] != "time_s" and time["gain"] is not None else ""


def error_text(error: Mapping[str, Any]) -> str:
    if error["relative"] is None:
        return "outputs not compared"
    if error["relative"] == 0:
        return "outputs the same"
    top1 = "" if error["top1"] is None else f", the same first choice for {format_percent(error['top1'])}"
    return f"outputs differ by {format_value(error['relative'])} of their norm{top1}"


def withdrawn_text(row: Mapping[str, Any]) -> str:
    """`conv-bn-fusion (norm): no gain in time can be told from the noise; costs …`."""
    verified = row["verified"]
    measured = "" if verified["gain"] is None else f"; {gained_text(verified)}"
    place = row["where"]["weight"] or row["where"]["module"] or "the model"
    return f"{row['rule']} ({place}): {verified['reason']}{measured}"


def withdrawn_lines(found: Sequence[Mapping[str, Any]], options: Options) -> list[Line]:
    rows = [row for row in found if is_withdrawn(row)]
    texts = [withdrawn_text(row) for row in rows]
    lines = [line for text in texts for line in wrap(visible(text), options.width, lead=(Span("- "),), style="dim")]
    return [(Span("Withdrawn, since it did not hold when it was tried"),), *lines] if lines else []


def plan_text(found: Mapping[str, Any]) -> str:
    together = f"{', '.join(found['rules'])}: {gained_text(found)}; {error_text(found['output_error'])}"
    return f"measured together, {together}"


def plan_lines(found: Mapping[str, Any] | None, options: Options) -> list[Line]:
    if found is None:
        return []
    if not found["rules"]:
        why = visible(f"none: {found['reason']}")
        return [(Span(""),), heading("Plan"), *wrap(why, options.width)]
    code = [(Span(visible(line)),) for line in found["code"].splitlines()]
    return [
        (Span(""),),
        heading("Plan"),
        *wrap(visible(plan_text(found)), options.width),
        (Span(""),),
        *code,
    ]
