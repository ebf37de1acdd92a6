"""The first screen: the model, its main figures, and warnings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from torchgauge.facts import View
from torchgauge.facts.figures import ESTIMATED, MEASURED, STATIC
from torchgauge.facts.measurements import energy_of, measurements_of
from torchgauge.facts.plausibility import interval_share
from torchgauge.facts.weights import removable
from torchgauge.report.content.energy import range_text
from torchgauge.report.content.findings import findings
from torchgauge.report.content.memory import find_peak
from torchgauge.report.content.ops import coverage, uncounted_text
from torchgauge.report.content.summary import (
    input_facts,
    memory_facts,
    model_kind,
    note_texts,
    origin_facts,
    parameter_note,
    prediction_facts,
    run_text,
    stored_facts,
    time_facts,
)
from torchgauge.report.content.time import measurement_warnings
from torchgauge.report.options import ABOUT, Options
from torchgauge.report.page.payload import part
from torchgauge.report.ranking import is_estimated
from torchgauge.report.weight_statistics import sqnr_db, summary_of
from torchgauge.units import (
    format_bytes,
    format_count,
    format_decibels,
    format_exact,
    format_joules,
    format_percent,
    format_seconds,
    format_things,
    format_value,
    format_watts,
)


@part("overview")
def overview(view: View, options: Options) -> dict[str, object]:
    capture, kind = view.capture, model_kind(view)
    return {
        "name": capture.target.name or kind,
        "kind": kind,
        "run": run_text(view),
        "facts": [*input_facts(view), *origin_facts(view)],
        "cards": [asdict(card) for card in cards(view)],
        "warnings": warnings(view),
        "created": capture.created,
        "version": capture.version,
    }


def warnings(view: View) -> list[str]:
    texts = [*(found.text for found in findings(view)), *note_texts(view)]
    if view.capture.has_code and (uncounted := coverage(view)).uncounted:
        names = ", ".join(entry.op for entry in uncounted.uncounted_ops[:6])
        texts.append(f"{uncounted_text(uncounted).removesuffix('.')}: {names}")
    texts += measurement_warnings(view)
    failures = view.capture.statistics.failures if view.capture.statistics else ()
    if failures:
        names = ", ".join(name for name, _ in failures[:6])
        texts.append(f"{format_things(len(failures), 'tensor')} could not be read: {names}")
    return texts


MAX_CARDS = 10
# The kind of a card that holds a finding instead of a figure.
ALARM = "alarm"


@dataclass(frozen=True, slots=True)
class Card:
    label: str
    value: str
    note: str = ""
    kind: str = STATIC


def cards(view: View) -> list[Card]:
    """Ten cards: the figures that were requested, filled up with others that are known."""
    first = [*_first(view)]
    return [*first, *[*_further(view)][: max(MAX_CARDS - len(first), 0)]]


def _first(view: View) -> Iterator[Card]:
    totals, note = view.totals, parameter_note(view)
    exact = format_exact(totals.params)
    yield from (Card(found.label, found.value, found.note, ALARM) for found in findings(view))
    yield Card("Parameters", format_count(totals.params), f"{exact}; {note}" if note else exact)
    yield Card(*memory_facts(view)[0])
    yield from (Card(name, value, note) for name, value, note in stored_facts(view))
    if view.capture.has_code:
        peak = find_peak(view)
        moved = f"{format_bytes(totals.bytes_read)} read, {format_bytes(totals.bytes_written)} written"
        yield Card("MACs", format_count(totals.macs), format_exact(totals.macs))
        yield Card("FLOPs", format_count(totals.flops), format_exact(totals.flops))
        yield from (Card(*fact, ESTIMATED) for fact in time_facts(view))
        yield Card("Bytes moved", format_bytes(totals.bytes_read + totals.bytes_written), moved)
        step = view.capture.run.step
        if step is None:
            yield Card("Peak activations", format_bytes(peak.activation_bytes), f"at {peak.place}")
        else:
            yield Card("Gradients", format_bytes(totals.gradient_bytes), "of the trained parameters")
            yield Card("Optimizer state", format_bytes(totals.optimizer_bytes), step.optimizer)
    yield from (Card(*fact, ESTIMATED) for fact in prediction_facts(view))
    if latency := measurements_of(view).get("latency"):
        precision, runs = interval_share(latency), format_exact(latency["runs"])
        spread = "one run" if precision is None else f"median of {runs} runs, ±{format_percent(precision)}"
        yield Card("Latency", format_seconds(latency["median_s"]), spread, MEASURED)
        if latency["throughput_per_s"] is not None:
            rate = f"{format_count(latency['throughput_per_s'])}/s"
            yield Card("Throughput", rate, "samples, at the median", MEASURED)
    energy = energy_of(view)
    if energy is not None and totals.energy_j is not None:
        mean = energy.get("watts_mean")
        over = f"one run, {format_watts(mean)} on average" if mean is not None else "one run"
        yield Card("Energy", format_joules(totals.energy_j), over, MEASURED)
    elif energy is not None and is_estimated(view) and (joules := energy.get("estimated_joules")) is not None:
        yield Card("Energy", ABOUT + format_joules(joules["value"]), range_text(joules), ESTIMATED)


def _further(view: View) -> Iterator[Card]:
    if view.capture.has_code:
        figures = view.totals
        moved = figures.bytes_read + figures.bytes_written
        if moved:
            yield Card("Arithmetic intensity", format_count(figures.flops / moved), "FLOPs per byte moved")
        without = (
            f"{format_exact(figures.uncounted_ops)} without a formula" if figures.uncounted_ops else "all accounted for"
        )
        yield Card("Ops", format_exact(figures.ops), without)
        yield Card("Activations", format_bytes(figures.activation_bytes), "sum of all op outputs")
    summary = summary_of(view)
    total = summary.get("total") if summary else None
    if total and total.get("mean") is not None:
        yield Card("Standard deviation", format_value(total["std"]), f"mean {format_value(total['mean'])}")
        span = f"{format_value(total['min'])} … {format_value(total['max'])}"
        yield Card("Largest magnitude", format_value(total["abs_max"]), span)
        yield Card("Zeros", format_percent(total["sparsity"]), f"{format_exact(total['zeros'])} values")
        if total.get("compressibility") is not None:
            yield Card("Compressible", format_percent(total["compressibility"]), "without loss, by its entropy")
        if (decibels := sqnr_db(total, "int8")) is not None:
            yield Card("In int8", format_decibels(decibels), "signal to noise with one scale per tensor")
        if (share := removable(total)) is not None:
            yield Card("Prunable", format_percent(share), "by magnitude, at an error of 1 %")
    depth = max(row.depth for row in view.modules)
    yield Card("Modules", format_exact(len(view.modules)), f"{format_exact(depth)} deep")
