"""Time, measured and predicted: the undisturbed runs, the slowest parts, and unattributed time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchgauge.facts import TraceRecord, View
from torchgauge.facts.measurements import measurements_of
from torchgauge.facts.plausibility import NEAR_THE_ROOF, interval_share
from torchgauge.report.content.ops import RANKED_ROWS, shapes_text
from torchgauge.report.model import (
    Cell,
    Cells,
    Fact,
    Facts,
    Section,
    Text,
    Topic,
    figures,
    more,
    names,
    notes,
    table,
    table_section,
)
from torchgauge.report.options import Options
from torchgauge.report.ranking import (
    BY_TIME,
    THE_MODEL,
    equal_calls,
    rate,
    share_of,
    top_modules,
    top_ops,
    top_phases,
    withheld,
)
from torchgauge.units import (
    format_bytes,
    format_count,
    format_exact,
    format_percent,
    format_seconds,
    format_things,
    format_value,
    format_whole_percent,
)

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Latency, UnjoinedCalls

NO_ROOF = "No roofline: peak unknown; run torchgauge system --calibrate."


def sections(view: View, options: Options) -> Iterator[Section]:
    yield from _predicted_times(view, options)
    if view.measurements is None:
        return
    yield measured_section(view)
    if reason := withheld(view, BY_TIME):
        yield Section("Slowest modules and ops", notes([reason]), Topic.TIME, page_part="time")
    yield from _slow_modules(view, options.rows(*RANKED_ROWS))
    if ranked := top_ops(view, BY_TIME, options.rows(*RANKED_ROWS)):
        has_roof = any(entry.roof_share is not None for entry in ranked)
        roof = ("of roof",) if has_roof else ()
        headings = (*names("Op"), *figures("×", "Time", "share", "FLOP/s", "Bytes/s", *roof, "Bound"))
        rows: list[Cells] = []
        for entry in ranked:
            op = Cell(f" {shapes_text(entry.input_shapes, entry.output_shapes)}", entry.op)
            time = format_exact(entry.calls), format_seconds(entry.value), format_percent(entry.share)
            rates = format_count(rate(entry, entry.flops)), format_bytes(rate(entry, entry.bytes_moved))
            near = [format_percent(entry.roof_share)] if has_roof else []
            rows.append((op, *time, *rates, *near, entry.bound or "-"))
        slowest = table(headings, rows, (op_times_note(has_roof=has_roof),))
        yield Section("Slowest ops, equal calls together", (slowest,), Topic.TIME, page_part="time")
    if (residue := residue_section(view)) is not None:
        yield residue


def measured_section(view: View) -> Section:
    """The undisturbed runs and the conditions that they ran under."""
    measured = measurements_of(view)
    facts = [*_latency_facts(latency)] if (latency := measured.get("latency")) else []
    if phases := measured.get("phases"):
        text = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in phases.items())
        facts.append(("Phases", "", f"{text}, one step, synchronised between phases"))
    if threads := measured.get("threads"):
        note = f"intra-op, {format_exact(threads.get('inter_op'))} inter-op"
        facts.append(("Threads", format_exact(threads.get("intra_op")), note))
    if around := measured.get("surroundings"):
        own, others = format_percent(around.get("own_share")), format_percent(around.get("other_processes_share"))
        governor = f"governor {around['governor']}" if around.get("governor") else "governor unknown"
        facts.append(("Machine", "", f"this process used {own} of the CPU, others {others}, {governor}"))
    if settings := {name: value for name, value in (measured.get("settings") or {}).items() if value is not None}:
        # "budget_s" 10.0 is written as "budget 10 s".
        texts = [
            f"{name.removesuffix('_s').replace('_', ' ')} {format_value(value) if isinstance(value, float) else value}"
            f"{' s' if name.endswith('_s') else ''}"
            for name, value in settings.items()
        ]
        facts.append(("Settings", "", ", ".join(texts)))
    warnings = [*measurement_warnings(view)]
    device = measured.get("device")  # none where the model was never run
    title = "Not measured" if device is None else f"Measured on {device}"
    blocks = (*([Facts(facts)] if facts else []), *notes(warnings, is_warning=True))
    return Section(title, blocks, Topic.TIME, page_part="time", name="time")


def measurement_warnings(view: View) -> Iterator[str]:
    measured = measurements_of(view)
    yield from (str(note) for note in measured.get("notes") or ())
    if measured.get("failure"):
        yield f"The measurement ended early: {measured['failure']}"


def _latency_facts(found: Latency) -> Iterator[Fact]:
    precision = interval_share(found)
    # A single run has no interval: with one, its time would look certain.
    note = "one undisturbed run: its variation is unknown"
    if precision is not None:
        low, high = map(format_seconds, found["ci95_s"] or ())
        interval = f"±{format_percent(precision)} (95 %: {low} to {high})"
        note = f"median of {format_exact(found['runs'])} undisturbed runs, {interval}"
    yield "Latency", format_seconds(found["median_s"]), note
    if found["runs"] > 1:
        spread = f"{format_seconds(found['min_s'])} to {format_seconds(found['max_s'])}"
        tail = f"p90 {format_seconds(found['p90_s'])}, p99 {format_seconds(found['p99_s'])}"
        average = f"mean {format_seconds(found['mean_s'])}, std {format_seconds(found['std_s'])}"
        yield "Spread", "", f"{spread}, {tail}, {average}"
    if (host_s := found.get("host_s")) is not None:
        share = format_percent(share_of(host_s, found["median_s"]))
        yield "Host", format_seconds(host_s), f"until the call returns, {share} of the median"
    if found["throughput_per_s"] is not None:
        yield "Throughput", f"{format_count(found['throughput_per_s'])}/s", "samples, at the median"
    if found["cold_s"] is not None:
        runs = found.get("warmup_runs") or 0
        warm_up = "1 run" if runs == 1 else f"{format_exact(runs)} runs"
        yield "First run", format_seconds(found["cold_s"]), f"cold; then {warm_up} to warm up"


def _slow_modules(view: View, limit: int) -> Iterator[Section]:
    rows = []
    for entry in top_modules(view, BY_TIME, limit):
        time = format_seconds(entry.value), format_percent(entry.share)
        rows.append((entry.paths or THE_MODEL, entry.kind, format_exact(entry.count), format_count(entry.flops), *time))
    headings = (*names("Module", "Type"), *figures("×", "FLOPs", "Self", "share"))
    title = "Slowest modules, by their own measured time"
    yield from table_section(title, headings, rows, topic=Topic.TIME, page_part="time")
    by_phase = top_phases(view, limit)
    phases = list(dict.fromkeys(phase for entry in by_phase for phase in entry.seconds))
    if len(phases) > 1:
        phased = [
            (one.paths or THE_MODEL, format_exact(one.count), *(format_seconds(one.seconds.get(at)) for at in phases))
            for one in by_phase
        ]
        title = "Slowest modules by phase, their own measured time"
        headings = (*names("Module"), *figures("×", *phases))
        yield from table_section(title, headings, phased, topic=Topic.TIME, page_part="time")


def op_times_note(*, has_roof: bool) -> str:
    note = "Times of profiled runs, not scaled."
    near = f"Bound by compute or memory from {format_whole_percent(NEAR_THE_ROOF)} of the roof on."
    return f"{note} {near if has_roof else NO_ROOF}"


@dataclass(frozen=True, slots=True)
class Residue:
    """The part of the undisturbed run that no op explains. `total_s` is its median; `in_ops_s` is from profiled runs,
    which take `overhead_share` longer, and is not scaled. `between_ops_s` is the host's time in no op, in the profiled
    run that took `profiled_s`."""

    total_s: float
    in_ops_s: float
    unexplained_s: float
    joined_ops: int
    static_ops: int
    overhead_share: float | None
    device_s: float | None
    device_idle_s: float | None
    profiled_s: float | None
    between_ops_s: float | None
    unjoined_calls: Sequence[UnjoinedCalls] = ()
    ops_not_run: Counter[str] = field(default_factory=Counter)

    @property
    def unexplained_share(self) -> float:
        return share_of(self.unexplained_s, self.total_s)


def find_residue(view: View) -> Residue | None:
    """None where no run was profiled, and where its ops took longer than the whole run without the profiler."""
    measured = measurements_of(view)
    profile, latency, unexplained_s = measured.get("profile"), measured.get("latency"), measured.get("unexplained_s")
    if not profile or not latency or unexplained_s is None:
        return None
    total = latency["median_s"]
    trace = view.capture.measured.trace if view.capture.measured else None
    timed = view.capture.measured.ops if view.capture.measured else {}
    return Residue(
        total_s=total,
        in_ops_s=total - unexplained_s,
        unexplained_s=unexplained_s,
        joined_ops=profile["joined_ops"],
        static_ops=profile["static_ops"],
        overhead_share=profile["overhead_share"],
        device_s=profile.get("device_s"),
        device_idle_s=profile.get("device_idle_s"),
        profiled_s=trace.duration_ns * 1e-9 if trace else None,
        between_ops_s=between_calls_s(trace) if trace else None,
        unjoined_calls=profile.get("unjoined_calls") or (),
        ops_not_run=Counter(op.op for op in view.capture.ops if op.index not in timed) if timed else Counter(),
    )


def between_calls_s(trace: TraceRecord) -> float:
    """The time that the calling thread spends outside of calls. With a device only until the last call: then the host
    waits for it."""
    if not trace.calls:
        return trace.duration_ns * 1e-9
    caller = trace.modules[0][3] if trace.modules else trace.calls[0][3]
    covered = until = 0
    for start, duration, _, thread, _ in trace.calls:
        if thread == caller and start >= until:
            covered += duration
            until = start + duration
    return ((until if trace.kernels else trace.duration_ns) - covered) * 1e-9


def residue_section(view: View) -> Section | None:
    found = find_residue(view)
    if found is None:
        return None
    where = "on the device " if found.device_s is not None else ""
    joined = f"{format_exact(found.joined_ops)} of {format_exact(found.static_ops)} ops"
    facts: list[Fact] = [
        ("Whole run", format_seconds(found.total_s), "the median above"),
        ("In ops", format_seconds(found.in_ops_s), f"{where}({joined})"),
        ("Unattributed", format_seconds(found.unexplained_s), f"{format_percent(found.unexplained_share)} of the run"),
    ]
    if calls := found.unjoined_calls:
        times = [f"{row['calls']} × {row['op']} {format_seconds(row['time_s'])}" for row in calls]
        rest = f" and {format_things(len(times) - 3, 'more op')}" if len(times) > 3 else ""
        seconds = format_seconds(sum(row["time_s"] for row in calls))
        facts.append(("Not joined", seconds, f"calls of no static op: {', '.join(times[:3])}{rest}"))
    if found.ops_not_run:
        listed = [f"{count} × {op}" for op, count in found.ops_not_run.most_common()]
        rest = f" and {format_things(len(listed) - 3, 'more op')}" if len(listed) > 3 else ""
        facts.append(("Without a call", "", f"the run has none for {', '.join(listed[:3])}{rest}"))
    if found.device_idle_s is not None:
        share = format_percent(found.device_idle_s / found.total_s if found.total_s else None)
        facts.append(("Device idle", format_seconds(found.device_idle_s), f"{share}: no kernel ran"))
    if found.between_ops_s is not None and found.profiled_s:
        share = format_percent(found.between_ops_s / found.profiled_s)
        note = f"{share} of one profiled run of {format_seconds(found.profiled_s)}: Python, and the profiler's own work"
        facts.append(("Between ops", format_seconds(found.between_ops_s), note))
    took = "take longer"
    if (share_over := found.overhead_share) is not None:
        took = f"took {format_percent(abs(share_over))} {'longer' if share_over >= 0 else 'less'}"
    note = f"Parts are from profiled runs, which {took}; they are not scaled."
    blocks = (Facts(facts), Text(note, is_remark=True))
    return Section("The undisturbed run and its parts", blocks, Topic.TIME, page_part="time")


def _predicted_times(view: View, options: Options) -> Iterator[Section]:
    """The ops that take the most time on the first device that was predicted for."""
    if view.capture.predicted is None:
        return
    rows, first = view.capture.predicted.ops, view.capture.forecast[0]
    whole = first["predicted_time_s"]
    # This machine may run a recurrent layer step by step, where the device runs one kernel for the layer.
    recurrent = view.capture.recurrent_layers
    layers = {record.path: record for record in view.capture.modules if record.path in recurrent}
    ranked = []
    for calls in equal_calls(op for op in view.capture.ops if rows.get(op.index)):
        found = [rows[op.index] for op in calls]
        seconds, device_s = (sum(row[key] for row in found) for key in ("predicted_time_s", "predicted_device_s"))
        longest = max(found, key=lambda row: row["predicted_time_s"])
        ranked.append((seconds, device_s, calls, longest))
    ranked.sort(key=lambda entry: -entry[0])
    limit = options.rows(*RANKED_ROWS)
    lines: list[Cells] = []
    for seconds, device_s, calls, longest in ranked[:limit]:
        signature = calls[0].signature
        shapes = [tuple(spec.shape for spec in specs) for specs in (signature.inputs, signature.outputs)]
        cells = [
            format_exact(len(calls)), format_seconds(seconds), format_percent(share_of(seconds, whole)),
            format_seconds(device_s), format_percent(longest["predicted_roof_share"]),
            longest["predicted_bound"] or "-", longest["predicted_source"] or "-",
        ]  # fmt: skip
        layer = layers.get(calls[0].module)
        text = f" {shapes_text(*shapes)}" if layer is None else f" {layer.path}"
        lines.append((Cell(text, signature.op if layer is None else layer.type), *cells))
    headings = (*names("Op"), *figures("×", "Time", "share", "on device", "of roof", "Bound", "Source"))
    note = "Predicted, not measured; equal calls together. Time includes waiting for the host."
    ops = table(headings, lines, (*more(len(ranked) - limit, "kinds of calls"), note))
    yield Section(f"Where the time goes on {first['title']}, predicted", (ops,), Topic.TIME, name="predicted-time")
