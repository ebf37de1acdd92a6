"""Energy, temperature and carbon. An estimate has another heading, a sign before each figure, and its range."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torchgauge.facts import View
from torchgauge.facts.measurements import energy_of
from torchgauge.report.content.ops import RANKED_ROWS, shapes_text
from torchgauge.report.model import (
    Block,
    Cell,
    Cells,
    Course,
    Fact,
    Facts,
    Section,
    Topic,
    figures,
    names,
    notes,
    table_section,
)
from torchgauge.report.options import ABOUT, Detail, Options
from torchgauge.report.ranking import (
    BY_ENERGY,
    THE_MODEL,
    TopModules,
    TopOps,
    is_estimated,
    rate,
    top_modules,
    top_ops,
    withheld,
)
from torchgauge.units import (
    format_count,
    format_exact,
    format_grams,
    format_joules,
    format_percent,
    format_seconds,
    format_value,
    format_watts,
)

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Carbon, Ends, EnergyFigures, Range, Thermal


def sections(view: View, options: Options) -> Iterator[Section]:
    found = energy_of(view)
    # The summary has an estimate in a line: its details follow from assumptions, not from this run.
    if found is None or (is_estimated(view) and options.detail is Detail.BRIEF and not options.ops):
        return
    yield energy_section(view, found)
    yield from _rankings(view, options.rows(*RANKED_ROWS))
    if (thermal := found.get("thermal")) and (heat := thermal_section(thermal)):
        yield heat
    if carbon := found.get("carbon"):
        yield carbon_section(carbon)


def energy_section(view: View, found: EnergyFigures) -> Section:
    """The energy of a run, what it rests on, and why it was not measured."""
    thermal, basis = found.get("thermal"), found.get("estimated_from")
    estimated = is_estimated(view)
    title = "Energy of one run, ESTIMATED: no meter measured it" if estimated else "Energy of one run"
    facts = list(_estimated_facts(found) if estimated else _measured_facts(found))
    blocks: list[Block] = [Facts(facts)] if facts else []
    power = (thermal.get("series") or {}).get("power_w") if thermal else None
    watts = tuple(value for value in power["values"] if value is not None) if power else ()
    if len(watts) > 1 and not estimated:
        blocks.append(Course((("Over time", watts, f"up to {format_watts(max(watts))}"),)))
    blocks += notes([f"Not measured: {found['reason']}"] if found["reason"] else [], is_warning=True)
    remarks = [*found["notes"], *(basis["notes"] if basis else ())]
    blocks += notes([str(note) for note in remarks], is_remark=True)
    return Section(title, tuple(blocks), Topic.ENERGY, page_part="energy")


def _measured_facts(found: EnergyFigures) -> Iterator[Fact]:
    if found["joules"] is None:
        return
    trials, window = found.get("trials"), found.get("window_s")
    over = f"{format_exact(trials)} trials, {format_seconds(window)}" if trials and window else "measured"
    if interval := found.get("ci95_j"):
        low, high = map(format_joules, interval)
        over = f"mean of {over} (95 %: {low} to {high})"
    yield "Energy", format_joules(found["joules"]), over
    if found.get("net_joules") is not None:
        idle = f"above the idle power of {format_watts(found.get('idle_watts'))}"
        yield "Net", format_joules(found["net_joules"]), idle
    for name, joules in (("Per sample", found.get("joules_per_sample")), ("Per token", found.get("joules_per_token"))):
        if joules is not None and joules != found["joules"]:
            yield name, format_joules(joules), ""
    if found.get("watts_mean") is not None:
        limit = found.get("power_limit_watts")
        note = f"mean; {format_watts(found.get('watts_peak'))} at most"
        yield "Power", format_watts(found["watts_mean"]), note + (f", limit {format_watts(limit)}" if limit else "")
    if (efficiency := found.get("flops_per_joule")) is not None:
        best, note = found.get("device_best"), "the device's best is unknown"
        if best:
            share = format_percent(efficiency / best["flops_per_joule"])
            note = f"{share} of the device's best in {best['dtype']}: {best['source']}"
        yield "Efficiency", f"{format_count(efficiency)}FLOP/J", note
    if meters := [meter for meter in found["meters"] if meter["available"]]:
        names = ", ".join(meter["name"] for meter in meters)
        yield "Meter", "", f"{names}; {found.get('boundary')}"


def _estimated_facts(found: EnergyFigures) -> Iterator[Fact]:
    joules, each = found.get("estimated_joules"), found.get("estimated_joules_per_sample")
    basis = found.get("estimated_from")
    if joules is None or basis is None:
        return
    yield "Energy", ABOUT + format_joules(joules["value"]), range_text(joules)
    if each is not None and each != joules:
        yield "Per sample", ABOUT + format_joules(each["value"]), range_text(each)
    if watts := found.get("estimated_watts_mean"):
        within = f"between {format_watts(watts['low'])} and {format_watts(watts['high'])}"
        yield "Power", ABOUT + format_watts(watts["value"]), within
    if efficiency := found.get("estimated_flops_per_joule"):
        within = f"between {format_count(efficiency['low'])} and {format_count(efficiency['high'])}FLOP/J"
        yield "Efficiency", f"{ABOUT}{format_count(efficiency['value'])}FLOP/J", within
    work = f"operations and bytes alone {range_text(basis['work_joules'])}"
    if basis["watts"]:
        low, high = format_watts(basis["watts"]["low"]), format_watts(basis["watts"]["high"])
        work += f"; the device takes {low} to {high}"
    yield "From", "", f"{basis['technology']}: {work}"
    # The names of the publications alone; what was taken from each is in the data.
    publications = dict.fromkeys(re.split("[:,;]", source)[0] for source in basis["sources"])
    yield "Sources", "", ", ".join(publications)


def range_text(joules: Range) -> str:
    return f"between {format_joules(joules['low'])} and {format_joules(joules['high'])}"


def _rankings(view: View, limit: int) -> Iterator[Section]:
    estimated = is_estimated(view)
    if reason := withheld(view, BY_ENERGY):
        yield Section("Most energy-hungry modules and ops", notes([reason]), Topic.ENERGY, page_part="energy")
    # FLOPs per estimated joule would only repeat the assumptions of the estimate.
    columns = figures("×", "Estimated" if estimated else "Energy", "share", *(() if estimated else ("FLOP/J",)))

    def cells(count: int, entry: TopModules | TopOps) -> list[str]:
        joules = (ABOUT if estimated else "") + format_joules(entry.value)
        shown = [format_exact(count), joules, format_percent(entry.share)]
        return shown if estimated else [*shown, format_count(rate(entry, entry.flops))]

    suffix = ", ESTIMATED" if estimated else ""
    modules = [
        (entry.paths or THE_MODEL, entry.kind, *cells(entry.count, entry))
        for entry in top_modules(view, BY_ENERGY, limit)
    ]
    title, headings = f"Most energy-hungry modules, by their own energy{suffix}", (*names("Module", "Type"), *columns)
    yield from table_section(title, headings, modules, topic=Topic.ENERGY, page_part="energy")
    ops: list[Cells] = [
        (Cell(f" {shapes_text(entry.input_shapes, entry.output_shapes)}", entry.op), *cells(entry.calls, entry))
        for entry in top_ops(view, BY_ENERGY, limit)
    ]
    title, headings = f"Most energy-hungry ops, equal calls together{suffix}", (*names("Op"), *columns)
    yield from table_section(title, headings, ops, parts_notes(view), topic=Topic.ENERGY, page_part="energy")


def parts_notes(view: View) -> tuple[str, ...]:
    found = energy_of(view)
    if found is None:
        return ()
    if (spread := found.get("estimated_joules")) and is_estimated(view):
        times = format_count(spread["high"] / spread["low"]) if spread["low"] else "?"
        return (f"Estimated: shares of the middle of a range whose ends are {times} times apart.",)
    parts = found.get("attribution")
    if not parts or parts.get("explained_share") is None:
        return ()
    whole = f"The parts add up to {format_percent(parts['explained_share'])} of the whole"
    return (f"{whole}; the difference is {format_joules(parts.get('residue_j'))} ({parts.get('method')}).",)


def thermal_section(found: Thermal) -> Section | None:
    """How warm the device got while its energy was measured, and what that did to it."""
    shown: list[tuple[str, str, Ends | None, Callable[[float], str]]] = [
        ("temperature_c", "Temperature", found.get("temperature_c"), lambda value: f"{format_value(value)} °C"),
        ("clock_hz", "Clock", found.get("clock_hz"), lambda value: f"{format_count(value)}Hz"),
    ]
    facts: list[Fact] = []
    courses: list[tuple[str, tuple[float, ...], str]] = []
    for key, name, ends, form in shown:
        if ends:
            most = form(ends["max"])
            over_all = f"{form(ends['first'])} to {form(ends['last'])}, {form(ends['min'])} to {most} over all"
            facts.append((name, "", over_all))
            series = (found.get("series") or {}).get(key)
            values = tuple(value or 0.0 for value in series["values"]) if series else ()
            courses += [(name, values, f"{most} at most")] if len(values) > 1 else []
    if (reasons := found.get("throttled")) is not None:
        held = ", ".join(
            f"{why.replace('_', ' ')} {format_percent(share)} of the time" for why, share in reasons.items()
        )
        facts.append(("Throttled", "", held or "never"))
    drift = found.get("drift") or {}
    if (change := drift.get("first_to_last")) is not None:
        slope = drift.get("joules_per_degree")
        note = "of energy, from the first trial to the last"
        note += "" if slope is None else f"; {format_joules(slope)} per °C"
        facts.append(("Drift", f"{'+' if change > 0 else ''}{format_percent(change)}", note))
    if not facts:
        return None
    blocks: list[Block] = [Facts(facts), *([Course(tuple(courses))] if courses else [])]
    return Section("Temperature and clocks, while energy was measured", tuple(blocks), Topic.ENERGY, page_part="energy")


def carbon_section(found: Carbon) -> Section:
    """Grams, and all they rest on."""
    yearly = f"at {format_value(found['rate_per_s'])} per second, continuously"
    facts: list[Fact] = []
    for name, grams, spread, at in (
        ("Per 1,000 samples", found.get("grams_per_1000"), found.get("estimated_grams_per_1000"), ""),
        ("Per year", found.get("grams_per_year"), found.get("estimated_grams_per_year"), yearly),
    ):
        if grams is not None:
            facts.append((name, format_grams(grams), at))
        elif spread:
            within = f"between {format_grams(spread['low'])} and {format_grams(spread['high'])}"
            facts.append((name, ABOUT + format_grams(spread["value"]), f"{within}{', ' if at else ''}{at}"))
    year = f", {found['year']}" if found.get("year") else ""
    grid = f"{format_value(found['g_per_kwh'])} g per kWh: {found['place']}{year} ({found['source']})"
    facts += [
        ("Grid", "", grid + (f"; {found['assumed']}" if found.get("assumed") else "")),
        ("PUE", format_value(found["pue"]), "the data centre's overhead"),
        ("Boundary", "", found["boundary"]),
    ]
    estimated = any(key.startswith("estimated_") for key in found)
    title = "Carbon dioxide equivalents" + (", ESTIMATED" if estimated else "")
    return Section(title, (Facts(facts),), Topic.ENERGY, page_part="energy")
