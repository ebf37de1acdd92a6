"""The text report of `fit`: verdict, bar by class, peak, what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchgauge.report.escape import visible
from torchgauge.report.layout import Line, Span
from torchgauge.units import format_bytes, format_percent

_NAMES = {
    "parameters": "parameters", "buffers": "buffers", "inputs": "inputs", "gradients": "gradients",
    "optimizer_state": "optimizer state", "activations": "activations", "temporaries": "temporaries",
    "workspaces": "kernel workspaces", "slack": "allocator slack",
}  # fmt: skip
_MARKS = "█▓▒░▞▚▦▤·"
_WORDS = {"fits": "fits", "does not fit": "does not fit", "too close": "too close to call"}


def fit_report(document: Mapping[str, Any], width: int) -> list[Line]:
    """All devices of a document, a blank line between."""
    lines: list[Line] = []
    for one in document["fit"]:
        lines += [(Span(text, "heading" if place == 0 else ""),) for place, text in enumerate(fit_lines(one, width))]
        lines.append((Span(""),))
    return lines[:-1]


def fit_lines(one: Mapping[str, Any], width: int = 100) -> list[str]:
    free = one["free_bytes"]
    left = f"{format_bytes(free)} free" if free >= 0 else f"{format_bytes(-free)} too much"
    capacity, bounds = one["capacity_bytes"], one["bounds"]
    batch = f", batch {one['batch']}" if one.get("batch") else ""
    lines = [
        f"{visible(one['target'])} on {one['title']}: {_WORDS[one['verdict']]} ({left} of {format_bytes(capacity)})",
        f"  {one['mode']}{batch}; capacity: {one['capacity_source']}",
        "",
    ]
    for key, title in (
        ("allocated_bytes", "allocated by tensors"), ("reserved_bytes", "reserved by the allocator"),
        ("used_bytes", "used on the device"), ("required_bytes", "smallest limit that works"),
    ):  # fmt: skip
        span = bounds[key]
        between = f"{format_bytes(span['low'])} to {format_bytes(span['high'])}"
        lines.append(f"  {title:26} {format_bytes(one[key]):>10}   {between}")
    lines += ["", *_bar(one, width), ""]
    peak = one["peak"]
    if peak:
        where = f" in {visible(peak['module'])}" if peak.get("module") else ""
        lines.append(f"  peak: {peak.get('phase', '')}, {peak.get('op', '')}{where}")
    holders = [h for h in one["holders"] if h["module"]][:3]
    if holders:
        held = ", ".join(f"{visible(h['module'])} {format_bytes(h['bytes'])}" for h in holders)
        lines.append(f"  largest holders: {held}")
    if one.get("loss"):
        lines.append(f"  loss: {one['loss']}")
    lines += [f"  note: {visible(text)}" for text in one["warnings"]]
    lines += _remedies(one)
    return lines


def _bar(one: Mapping[str, Any], width: int) -> Sequence[str]:
    """A bar of the device's memory: a mark per class, then the context; `|` is where the device ends."""
    parts = [(name, nbytes) for name, nbytes in one["by_class"].items() if nbytes > 0]
    room = max(min(width, 100) - 4, 20)
    top = max(one["capacity_bytes"], one["used_bytes"])
    text, done = "", 0
    for name, nbytes in parts:
        done += nbytes
        text += _MARKS[list(_NAMES).index(name)] * (round(done / top * room) - len(text))
    text += "c" * (round(one["used_bytes"] / top * room) - len(text))
    end = round(one["capacity_bytes"] / top * room)
    text = f"{text[:end].ljust(end)}|{text[end:]}"
    lines = [f"  {text}"]
    for name, nbytes in parts:
        share = format_percent(nbytes / one["used_bytes"])
        lines.append(f"  {_MARKS[list(_NAMES).index(name)]} {_NAMES[name]:20} {format_bytes(nbytes):>10} {share:>7}")
    context = one["used_bytes"] - one["reserved_bytes"]
    lines.append(f"  c {'context':20} {format_bytes(context):>10} {format_percent(context / one['used_bytes']):>7}")
    return lines


def _remedies(one: Mapping[str, Any]) -> list[str]:
    lines = []
    if one.get("max_batch") is not None:
        most = one["max_batch"]
        lines.append(f"  largest batch that fits: {most}" if most else "  not even a batch of 1 fits")
    if one.get("remedies"):
        lines += ["", "  what to change"]
        for remedy in one["remedies"]:
            cost = f", {format_percent(remedy['extra_flops'])} more FLOPs" if remedy["extra_flops"] > 0.005 else ""
            lines.append(
                f"    {remedy['name']}: {format_bytes(remedy['used_bytes'])} ({_WORDS[remedy['verdict']]}{cost})"
            )
            lines.append(f"      {remedy['code']}")
    return lines
