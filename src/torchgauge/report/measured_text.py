"""Measured time in the text report: the undisturbed runs, then who took it, then what nobody did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchgauge.facts import View
from torchgauge.report.escape import visible
from torchgauge.report.headline import fact_lines
from torchgauge.report.layout import Heading, Line, Span, lay_out, wrap
from torchgauge.report.options import Options
from torchgauge.report.origin import Fact
from torchgauge.report.ranking import BY_TIME, THE_MODEL, TopOps, rate, share_of, top_modules, top_ops, top_phases
from torchgauge.report.residue import Residue, find_residue
from torchgauge.report.sections import RANKED, figure, heading, shapes_text, text_cell
from torchgauge.report.sweep_points import interval_share
from torchgauge.units import format_bytes, format_count, format_exact, format_percent, format_seconds


def latency(view: View, options: Options) -> list[Line]:
    figures = view.measurements
    if figures is None:
        return []
    facts = [*_latency_facts(figures), *_circumstances(figures)]
    device = figures.get("device")  # none where it did not come to a run
    lines = [heading("Not measured" if device is None else f"Measured on {visible(str(device))}")]
    lines += fact_lines(facts, options.width) if facts else []
    for note in figures.get("notes") or ():
        lines += wrap(visible(str(note)), options.width, lead=(Span("- "),), style="warning")
    if figures.get("failure"):
        text = f"The measurement ended early: {figures['failure']}"
        lines += wrap(visible(text), options.width, lead=(Span("- "),), style="warning")
    return lines


def _latency_facts(figures: Mapping[str, Any]) -> list[Fact]:
    found = figures.get("latency")
    if not found:
        return []
    facts: list[Fact] = [("Latency", format_seconds(found["median_s"]), _median_note(found))]
    if found["runs"] > 1:
        facts.append(("Spread", "", _spread_text(found)))
    if found.get("host_s") is not None:
        facts.append(("Host", format_seconds(found["host_s"]), _host_note(found)))
    if found.get("throughput_per_s") is not None:
        facts.append(("Throughput", f"{format_count(found['throughput_per_s'])}/s", "samples, at the median"))
    if found.get("cold_s") is not None:
        warm_up = f"cold; then {_runs(found.get('warmup_runs') or 0)} to warm up"
        facts.append(("First run", format_seconds(found["cold_s"]), warm_up))
    return facts


def _median_note(found: Mapping[str, Any]) -> str:
    """One run has no interval: its own time would pass for certainty."""
    precision = interval_share(found)
    if precision is None:
        return "one undisturbed run: its variation is unknown"
    low, high = found["ci95_s"]
    interval = f"±{format_percent(precision)} (95 %: {format_seconds(low)} to {format_seconds(high)})"
    return f"median of {format_exact(found['runs'])} undisturbed runs, {interval}"


def _host_note(found: Mapping[str, Any]) -> str:
    return f"until the call returns, {format_percent(share_of(found['host_s'], found['median_s']))} of the median"


def _spread_text(found: Mapping[str, Any]) -> str:
    return (
        f"{format_seconds(found['min_s'])} to {format_seconds(found['max_s'])}, p90 {format_seconds(found['p90_s'])}, "
        f"p99 {format_seconds(found['p99_s'])}, mean {format_seconds(found['mean_s'])}, "
        f"std {format_seconds(found['std_s'])}"
    )


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{format_exact(count)} runs"


def _circumstances(figures: Mapping[str, Any]) -> list[Fact]:
    facts: list[Fact] = []
    if phases := figures.get("phases"):
        text = ", ".join(f"{visible(name)} {format_seconds(seconds)}" for name, seconds in phases.items())
        facts.append(("Phases", "", f"{text}, one step, synchronised between phases"))
    if threads := figures.get("threads"):
        note = f"intra-op, {format_exact(threads.get('inter_op'))} inter-op"
        facts.append(("Threads", format_exact(threads.get("intra_op")), note))
    if around := figures.get("surroundings"):
        facts.append(("Machine", "", _around_text(around)))
    if settings := {name: value for name, value in (figures.get("settings") or {}).items() if value is not None}:
        text = ", ".join(f"{visible(name.replace('_', ' '))} {visible(str(value))}" for name, value in settings.items())
        facts.append(("Settings", "", text))
    return facts


def _around_text(around: Mapping[str, Any]) -> str:
    governor = around.get("governor")
    own, others = around.get("own_share"), around.get("other_processes_share")
    parts = [
        f"this process used {format_percent(own)} of it, others {format_percent(others)}",
        f"governor {visible(governor)}" if governor else "governor unknown",
    ]
    return ", ".join(parts)


def slow_modules(view: View, options: Options) -> list[Line]:
    ranked = top_modules(view, BY_TIME, RANKED)
    if not ranked:
        return []
    headings = [Heading("Module", is_figure=False), Heading("Type", is_figure=False)]
    headings += [Heading(title) for title in ("×", "FLOPs", "Self", "share")]
    rows = [
        [
            text_cell(entry.paths or THE_MODEL),
            text_cell(entry.kind, "dim"),
            figure(format_exact(entry.count)),
            figure(format_count(entry.flops)),
            figure(format_seconds(entry.value)),
            figure(format_percent(entry.share)),
        ]
        for entry in ranked
    ]
    return [heading("Slowest modules, by their own measured time"), *lay_out(headings, rows, options.width)]


def slow_phases(view: View, options: Options) -> list[Line]:
    """Of a training step: where each phase spends its time."""
    ranked = top_phases(view, RANKED)
    names = list(dict.fromkeys(phase for entry in ranked for phase in entry.seconds))
    if len(names) < 2:
        return []
    headings = [Heading("Module", is_figure=False), Heading("×"), *(Heading(visible(name)) for name in names)]
    rows = [
        [
            text_cell(entry.paths or THE_MODEL),
            figure(format_exact(entry.count)),
            *(figure(format_seconds(entry.seconds.get(name))) for name in names),
        ]
        for entry in ranked
    ]
    return [heading("Slowest modules by phase, their own measured time"), *lay_out(headings, rows, options.width)]


def slow_ops(view: View, options: Options) -> list[Line]:
    ranked = top_ops(view, BY_TIME, RANKED)
    if not ranked:
        return []
    has_roof = any(entry.roof_share is not None for entry in ranked)
    headings = [Heading("Op", is_figure=False)]
    headings += [Heading(title) for title in ("×", "Time", "share", "FLOP/s", "Bytes/s")]
    headings += [Heading("of roof")] if has_roof else []
    headings.append(Heading("Bound"))
    rows = [_op_cells(entry, has_roof=has_roof) for entry in ranked]
    note = "Times of profiled runs. " + ("" if has_roof else _NO_ROOF)
    return [
        heading("Slowest ops, equal calls together"),
        *lay_out(headings, rows, options.width),
        *wrap(note.strip(), options.width, style="dim"),
    ]


_NO_ROOF = "No roofline: peak unknown; run torchgauge system --calibrate."


def _op_cells(entry: TopOps, *, has_roof: bool) -> list[Line]:
    return [
        (Span(f"{visible(entry.op)} ", "name"), Span(shapes_text(entry.input_shapes, entry.output_shapes), "dim")),
        figure(format_exact(entry.calls)),
        figure(format_seconds(entry.value)),
        figure(format_percent(entry.share)),
        figure(format_count(rate(entry, entry.flops))),
        figure(format_bytes(rate(entry, entry.bytes_moved))),
        *([figure(format_percent(entry.roof_share))] if has_roof else []),
        figure(entry.bound or "-"),
    ]


def residue(view: View, options: Options) -> list[Line]:
    found = find_residue(view)
    if found is None:
        return []
    lines = fact_lines(_residue_facts(found), options.width)
    note = f"Parts are from profiled runs, {_overhead_text(found.overhead_share)}; they are not scaled."
    return [heading("The undisturbed run and its parts"), *lines, *wrap(note, options.width, style="dim")]


def _overhead_text(share: float | None) -> str:
    if share is None:
        return "which take longer"
    return f"which took {format_percent(abs(share))} {'longer' if share >= 0 else 'less'}"


def _residue_facts(found: Residue) -> list[Fact]:
    where = "on the device " if found.device_s is not None else ""
    joined = f"{format_exact(found.joined_ops)} of {format_exact(found.static_ops)} ops"
    facts: list[Fact] = [
        ("Whole run", format_seconds(found.total_s), "the median above"),
        ("In ops", format_seconds(found.in_ops_s), f"{where}({joined})"),
        ("Unattributed", format_seconds(found.unexplained_s), _unexplained_note(found)),
    ]
    if found.device_idle_s is not None:
        share = format_percent(found.device_idle_s / found.total_s if found.total_s else None)
        facts.append(("Device idle", format_seconds(found.device_idle_s), f"{share}: no kernel ran"))
    if found.between_ops_s is not None and found.profiled_s:
        share = format_percent(found.between_ops_s / found.profiled_s)
        note = f"{share} of one profiled run of {format_seconds(found.profiled_s)}: Python, and the profiler's own work"
        facts.append(("Between ops", format_seconds(found.between_ops_s), note))
    return facts


def _unexplained_note(found: Residue) -> str:
    if found.unexplained_s < 0:
        return "ops take longer under the profiler than the whole run without it"
    return f"{format_percent(found.unexplained_share)} of the run"
