"""Advice that was applied and measured: what it gained, what did not hold, and the plan to copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchgauge.units import format_percent, format_value

# What is saved, and what more of it is taken.
_WORDS = {
    "time_s": ("of the time", "time"), "peak_activation_bytes": ("of the peak memory of a run", "peak memory"),
    "param_bytes": ("of the bytes it holds", "bytes"), "stored_bytes": ("of the bytes to store", "bytes to store"),
}  # fmt: skip


def verdict_of(verified: Mapping[str, Any]) -> str:
    """Files of earlier versions have two verdicts, held and not."""
    return str(verified.get("verdict") or ("confirmed" if verified["kept"] else "refuted"))


def is_withdrawn(row: Mapping[str, Any]) -> bool:
    verified = row.get("verified")
    return verified is not None and verdict_of(verified) == "refuted"


def measured_text(row: Mapping[str, Any]) -> str | None:
    """What applying it gave; None where nobody tried."""
    verified = row.get("verified")
    if verified is None:
        reason = row.get("unverified")
        return None if reason is None else f"not measured: {reason}"
    note = f" ({verified['note']})" if verified.get("note") else ""
    if verdict_of(verified) == "inconclusive":
        settled = f"; {verified['settled_by']}" if verified.get("settled_by") else ""
        return f"inconclusive{note}: {withdrawn_reason(verified)}{settled}"
    return f"measured{note}: {gained_text(verified)}{_time_text(verified)}; {error_text(verified['output_error'])}"


def gained_text(figures: Mapping[str, Any]) -> str:
    """`saves 12.3 % of the time (95 % interval: 11.0 % to 13.4 %)`."""
    gain, interval = figures["gain"], figures["ci95"]
    if gain is None:
        return "no result"
    saved, more = _WORDS[figures.get("quantity") or "time_s"]
    amount = f"saves {format_percent(gain)} {saved}" if gain >= 0 else f"takes {format_percent(-gain)} more {more}"
    sample = " of a sample" if figures.get("samples", 1) > 1 else ""
    known = "" if interval is None else _interval_text(interval if gain >= 0 else [-end for end in interval])
    return f"{amount}{sample}{known}"


def _interval_text(interval: Sequence[float]) -> str:
    low, high = sorted(interval)
    return "" if low == high else f" (95 % interval: {format_percent(low)} to {format_percent(high)})"


def _time_text(verified: Mapping[str, Any]) -> str:
    """Of what was advised for memory: its price."""
    time = verified.get("time")
    if not time or verified["quantity"] == "time_s" or time["gain"] is None:
        return ""
    if time["ci95"] is not None and time["ci95"][0] <= 0 <= time["ci95"][1]:
        return f"; no difference in time can be told from the noise{_interval_text(time['ci95'])}"
    return f"; {gained_text(time)}"


def error_text(error: Mapping[str, Any]) -> str:
    if error["relative"] is None:
        return "outputs not compared"
    if error["relative"] == 0:
        return "outputs the same"
    top1 = "" if error["top1"] is None else f", the same top-1 in {format_percent(error['top1'])} of the rows"
    return f"outputs differ by {format_value(error['relative'])} of their norm{top1}"


def withdrawn_text(row: Mapping[str, Any]) -> str:
    """`conv-bn-fusion (norm): no time gain above the noise (95 % interval: -1.2 % to 0.8 %)`."""
    verified = row["verified"]
    place = row["where"]["weight"] or row["where"]["module"] or "the model"
    note = f", {verified['note']}" if verified.get("note") else ""
    return f"{row['rule']} ({place}{note}): {withdrawn_reason(verified)}"


def withdrawn_reason(verified: Mapping[str, Any]) -> str:
    """With the figures that it does not tell itself."""
    reason, gain, interval = verified["reason"], verified["gain"], verified["ci95"]
    if gain is None:
        return str(reason)
    relative, tolerance = verified["output_error"]["relative"], verified.get("tolerance")
    if relative is None or (tolerance is not None and relative > tolerance):
        return f"{reason}; {gained_text(verified)}"
    if interval is None:
        return str(reason)
    return f"{reason}{_interval_text([-end for end in interval] if interval[1] < 0 else interval)}"


def plan_text(found: Mapping[str, Any]) -> str:
    together = "measured together" if len(found["rules"]) > 1 else "measured"
    return f"{', '.join(found['rules'])}, {together}: {gained_text(found)}; {error_text(found['output_error'])}"
