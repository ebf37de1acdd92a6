"""Advice: likely bugs, then the largest gains; the options of every model; the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from torchgauge.facts import View
from torchgauge.facts.measurements import energy_of
from torchgauge.report.model import Block, Code, Item, Listing, Section, Text, Topic, more, notes
from torchgauge.report.options import ABOUT, Options
from torchgauge.units import (
    format_bytes,
    format_count,
    format_decibels,
    format_exact,
    format_joules,
    format_percent,
    format_seconds,
    format_shape,
    format_value,
    format_whole_percent,
)

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Advice, Gain, MeasuredTime, OutputError, Plan, Verified

ADVICE_ROWS = 5
WITHDRAWN = "Withdrawn: refuted when tried"
# Lines of the terminal that a piece of advice takes at most, before its code.
MOST_LINES = 3
# Longer code follows the list.
CODE_LINES_BESIDE = 2
_NO_FIGURES = ("places", "count")
# A longer list shows only its length.
_LISTED_VALUES = 4
# Rule, place and line of code go on one line of a terminal, after the number of the advice.
_COLUMNS = 80 - len("10. ")

_DEVICES = {"cuda": "a GPU", "this": "this GPU"}
_LESS = {
    "peak_activation_bytes": "less memory for activations", "param_bytes": "less memory for parameters",
    "stored_bytes": "less to store", "bytes_moved": "fewer bytes moved", "flops": "fewer FLOPs",
}  # fmt: skip
# The words for a saving, and for an increase.
_WORDS = {
    "time_s": ("of the time", "time"), "peak_activation_bytes": ("of the peak memory of a run", "peak memory"),
    "param_bytes": ("of the bytes it holds", "bytes"), "stored_bytes": ("of the bytes to store", "bytes to store"),
}  # fmt: skip
_SHARES = {"share", "efficiency"}
# How a figure is written, by the suffix of its name, which the unit replaces.
_UNITS: Mapping[str, Callable[[float], str]] = {
    "_flops_per_s": lambda value: f"{format_count(value)}FLOP/s",
    "_bytes_per_s": lambda value: f"{format_count(value)}B/s",
    "_per_s": lambda value: f"{format_count(value)}/s",
    "_s": format_seconds,
    "_db": format_decibels,
    "_bytes": format_bytes,
}


def advice_of(view: View) -> Sequence[Advice]:
    """The advice with the types of the JSON document, like `options_of` and `plan_of`."""
    return cast("Sequence[Advice]", view.advice)


def options_of(view: View) -> Sequence[Advice]:
    return cast("Sequence[Advice]", view.options)


def plan_of(view: View) -> Plan | None:
    return cast("Plan | None", view.plan)


def effect_text(row: Advice) -> str:
    """`about 4 % faster (0.6 ms of 14 ms; 2.1 to 6.3 %)`."""
    return "likely a bug" if row.get("kind") == "bug" else gain_text(row["expected_gain"])


def gain_text(gain: Gain | None) -> str:
    """The middle of the range, what it is of, and once, in brackets, the range."""
    if gain is None:
        return "gain not known"
    low, high, middle = gain["low"], gain["high"], (gain["low"] + gain["high"]) / 2
    share = high if low == 0 else middle
    percent = format_whole_percent(share) if share >= 0.01 else format_percent(share)
    lead = "up to" if low == 0 else "about"
    is_range = low not in (0, high)  # else the lead says it, "up to" or a single figure
    digits = 0 if high >= 0.1 else 1
    span = f"{100 * low:.{digits}f} to {100 * high:.{digits}f} %" if is_range else ""
    if gain["quantity"] == "time_s":
        seconds = gain.get("seconds")
        # The document has the amount of the middle; the text that of the share before it.
        whole = seconds / middle if seconds and middle else 0.0
        amount = f"{format_seconds(share * whole)} of {format_seconds(whole)}" if whole else ""
        inside = "; ".join(text for text in (amount, span) if text)
        device = gain.get("device")
        place = "" if device is None else f" on {_DEVICES.get(device, device)}"
        return f"{lead} {percent} faster{place}{f' ({inside})' if inside else ''}"
    less = _LESS.get(gain["quantity"], f"of {gain['quantity']}")
    nbytes = gain.get("bytes")
    if nbytes is None:
        return f"{lead} {percent} {less}{f' ({span})' if span else ''}"
    return f"{lead} {format_bytes(round(nbytes * share / middle) if middle else nbytes)} {less} ({span or percent})"


def place_text(row: Advice, columns: int | None = None) -> str:
    """`layer1.0.bn1 and 52 more, resnet.py:155`; a path that does not fit the columns loses its first parts. Layers
    that the advice joins are named with it: `head.0 + 1 and 3 more`."""
    where, count, layers = row["where"], row["evidence"].get("count", 1), row["evidence"].get("layers")
    name = where["weight"] or where["module"] or "the model"
    others = [each for each in layers if each and each != name] if isinstance(layers, list) else []
    near = [each.removeprefix(f"{name.rpartition('.')[0]}.") for each in dict.fromkeys(others)]
    behind = "".join(f" + {each}" for each in near[:1]) + (f" + {len(near) - 1} others" if len(near) > 1 else "")
    behind += f" and {format_exact(count - 1)} more" if count > 1 else ""
    behind += f", {where['source']}" if where.get("source") else ""
    if columns is not None and len(name) + len(behind) > columns:
        parts = name.split(".")
        fitting = [".".join(parts[at:]) for at in range(1, len(parts))]
        last = next((each for each in fitting if 1 + len(each) + len(behind) <= columns), parts[-1])
        name = f"…{last}" if len(parts) > 1 else name
    return f"{name}{behind}"


def evidence_texts(row: Advice) -> list[str]:
    """The figures that the advice rests on."""
    found = (figure_text(name, value) for name, value in row["evidence"].items() if name not in _NO_FIGURES)
    return [text for text in found if text]


def figure_text(name: str, value: object) -> str | None:
    """A figure in its unit; None if it is unknown or too long for a line."""
    if value is None or isinstance(value, Mapping):
        return None
    words = name.split("_")
    if isinstance(value, list | tuple) and words[-1] == "shape":
        return f"{_words(name)} {format_shape(list(value))}"
    if isinstance(value, list | tuple):
        is_short = 0 < len(value) <= _LISTED_VALUES
        return f"{_words(name)} {', '.join(map(str, value))}" if is_short else f"{_words(name)}: {len(value)}"
    if isinstance(value, bool | str):
        return f"{_words(name)} {value}"
    if not isinstance(value, int | float):
        return None
    if _SHARES & set(words):
        return f"{_words(name)} {format_percent(value)}"
    if (ending := next((ending for ending in _UNITS if name.endswith(ending)), None)) is not None:
        return f"{_words(name.removesuffix(ending))} {_UNITS[ending](value)}"
    number = format_exact(value) if isinstance(value, int) else format_value(value)
    return f"{_words(name)} {format_bytes(value) if 'bytes' in words else number}"


def _words(name: str) -> str:
    """Environment variables keep their names."""
    return name if name.isupper() else name.replace("_", " ")


def verdict_of(verified: Verified) -> str:
    """Files of earlier versions have two verdicts, held and not."""
    return str(verified.get("verdict") or ("confirmed" if verified["kept"] else "refuted"))


def is_withdrawn(row: Advice) -> bool:
    verified = row.get("verified")
    return verified is not None and verdict_of(verified) == "refuted"


def measured_text(row: Advice) -> str | None:
    """The measured effect of applying it; None where it was not tried."""
    verified = row.get("verified")
    if verified is None:
        reason = row.get("unverified")
        return None if reason is None else f"not measured: {reason}"
    note = f" ({verified['note']})" if verified.get("note") else ""
    if verdict_of(verified) == "inconclusive":
        settled = f"; {verified['settled_by']}" if verified.get("settled_by") else ""
        return f"inconclusive{note}: {withdrawn_reason(verified)}{settled}"
    text = f"measured{note}: {gained_text(verified)}"
    time = verified.get("time")
    # Whether it held in a second process too.
    if (again := (time or {}).get("second_process_gain")) is not None:
        text += f", {format_percent(again)} in a second process"
    elif (reason := verified.get("one_process")) is not None:
        text += f", in one process ({reason})"
    # The cost in time of advice that saves memory.
    if time and verified["quantity"] != "time_s" and time["gain"] is not None:
        span = time["ci95"]
        if span is not None and span[0] <= 0 <= span[1]:
            text += f"; no difference in time above the noise{_interval_text(span)}"
        else:
            text += f"; {gained_text(time)}"
    return f"{text}; {error_text(verified['output_error'])}"


def gained_text(figures: Verified | MeasuredTime | Plan) -> str:
    """`saves 12.3 % of the time (95 % interval: 11.0 % to 13.4 %)`."""
    gain, interval = figures["gain"], figures["ci95"]
    if gain is None:
        return "no result"
    saved, more = _WORDS[str(figures.get("quantity") or "time_s")]
    amount = f"saves {format_percent(gain)} {saved}" if gain >= 0 else f"takes {format_percent(-gain)} more {more}"
    samples = figures.get("samples")
    sample = " of a sample" if isinstance(samples, int) and samples > 1 else ""
    known = "" if interval is None else _interval_text(interval if gain >= 0 else [-end for end in interval])
    return f"{amount}{sample}{known}"


def _interval_text(interval: Sequence[float]) -> str:
    low, high = sorted(interval)
    return "" if low == high else f" (95 % interval: {format_percent(low)} to {format_percent(high)})"


def error_text(error: OutputError | None) -> str:
    if error is None or error["relative"] is None:
        return "outputs not compared"
    if error["relative"] == 0:
        return "outputs the same"
    top1 = "" if error["top1"] is None else f", the same top-1 in {format_percent(error['top1'])} of the rows"
    return f"outputs differ by {format_value(error['relative'])} of their norm{top1}"


def withdrawn_text(row: Advice) -> str:
    """`conv-bn-fusion (norm): no time gain above the noise (95 % interval: -1.2 % to 0.8 %)`."""
    verified = row["verified"]
    assert verified is not None
    place = row["where"]["weight"] or row["where"]["module"] or "the model"
    note = f", {verified['note']}" if verified.get("note") else ""
    return f"{row['rule']} ({place}{note}): {withdrawn_reason(verified)}"


def withdrawn_reason(verified: Verified) -> str:
    """The reason, with the figures that it does not state."""
    reason, gain, interval = verified["reason"], verified["gain"], verified["ci95"]
    if gain is None:
        return str(reason)
    relative, tolerance = verified["output_error"]["relative"], verified.get("tolerance")
    if relative is None or (tolerance is not None and relative > tolerance):
        return f"{reason}; {gained_text(verified)}"
    if interval is None:
        return str(reason)
    return f"{reason}{_interval_text([-end for end in interval] if interval[1] < 0 else interval)}"


def standing_advice(view: View) -> list[Advice]:
    """The advice that was not refuted, in the order of its numbers."""
    return [row for row in advice_of(view) if not is_withdrawn(row)]


def saved_energy_text(view: View, gain: Gain | None) -> str | None:
    """The energy of the time that advice saves on the device of the run; None where one of them is unknown."""
    found = energy_of(view)
    if found is None or gain is None or gain["quantity"] != "time_s" or gain.get("device") is not None:
        return None
    low, high, condition = gain["low"], gain["high"], "less for a run, at the same power"
    if (joules := found["joules"]) is not None:
        return f"{format_joules(low * joules)} to {format_joules(high * joules)} {condition}"
    if (spread := found.get("estimated_joules")) is None:
        return None
    middle = format_joules((low + high) / 2 * spread["value"])
    ends = f"between {format_joules(low * spread['low'])} and {format_joules(high * spread['high'])}"
    return f"{ABOUT}{middle} {condition}, ESTIMATED: {ends}"


def sections(view: View, options: Options) -> Iterator[Section]:
    standing = standing_advice(view)
    shown = standing if options.all_advice else standing[: options.rows(ADVICE_ROWS, len(standing))]
    items: list[Item] = []
    below: list[Section] = []
    for number, row in enumerate(shown, start=1):
        gain = row["expected_gain"]
        lead = f"{row['rule']} at "
        facts = [("", f"{lead}{place_text(row, _COLUMNS - len(lead))}")]
        if gain is not None and gain["low"] != gain["high"]:  # else it is counted
            facts.append(("", gain.get("basis", "predicted")))
        line = row["where"].get("line") if row.get("code_kind") != "edit" else None  # a diff has the line
        is_long = line is not None and len(line) > _COLUMNS
        after = [("line", f"{line[:_COLUMNS]}…" if is_long else line)] if line else []
        after += [] if row["risk"] == "none" else [("risk", str(row["risk"]))]
        if options.detail:
            known = ", ".join(evidence_texts(row)) or "none"
            after += [("evidence", known), ("confidence", str(row["confidence"]))]
            after += [("energy", saved)] if (saved := saved_energy_text(view, gain)) else []
        code = "\n".join(line for line in (row["code"] or "").splitlines() if line.strip())
        if code.count("\n") >= CODE_LINES_BESIDE:
            title = f"Code for advice {number}: {row['rule']}"
            risk = tuple(Text(f"{name}: {text}", is_remark=True) for name, text in after if name == "risk")
            below.append(Section(title, (*risk, Code(code)), Topic.ADVICE, page_part="advice"))
            code, after = "", [each for each in after if each[0] != "risk"]
        after += [("", measured)] if (measured := measured_text(row)) else []
        items.append(Item(f"{effect_text(row)}: {row['recommendation']}", facts, code, after=after))
    blocks: list[Block] = [Listing(items, mark="1.", max_lines=MOST_LINES)] if items else []
    blocks += [Text(text, is_remark=True) for text in more(len(standing) - len(shown))]
    blocks += _withdrawn([withdrawn_text(row) for row in advice_of(view) if is_withdrawn(row)])
    if blocks:
        yield Section("Advice", tuple(blocks), Topic.ADVICE, page_part="advice")
    yield from below
    yield from _choices(view)
    if (plan := plan_of(view)) is not None:
        blocks_of_plan: tuple[Block, ...] = (Text(f"none: {plan.get('reason')}"),)
        if plan["rules"]:
            together = "measured together" if len(plan["rules"]) > 1 else "measured"
            effect = f"{gained_text(plan)}; {error_text(plan['output_error'])}"
            blocks_of_plan = (Text(f"{', '.join(plan['rules'])}, {together}: {effect}"), Code(plan["code"] or ""))
        yield Section("Plan", blocks_of_plan, Topic.ADVICE, page_part="advice")


def _choices(view: View) -> Iterator[Section]:
    """Choices that every model has, a line each."""
    items = []
    for row in options_of(view):
        if not is_withdrawn(row):
            measured = measured_text(row) if row.get("verified") else None
            after = [("", measured)] if measured else []
            items.append(Item(f"{effect_text(row)}: {row['recommendation']} ({row['rule']})", after=after))
    blocks: list[Block] = [Listing(items, max_lines=MOST_LINES)] if items else []
    blocks += _withdrawn([withdrawn_text(row) for row in options_of(view) if is_withdrawn(row)])
    if blocks:
        yield Section("Options", tuple(blocks), Topic.ADVICE, page_part="advice")


def _withdrawn(found: list[str]) -> list[Block]:
    return [Text(WITHDRAWN), *notes(found, is_remark=True)] if found else []
