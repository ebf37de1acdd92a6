"""The report of `forecast`: a table of devices and batches, where the time goes, and the picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchgauge.facts import ForecastFacts, forecast_row
from torchgauge.facts.plausibility import NEAR_THE_ROOF
from torchgauge.registry import grouped
from torchgauge.report.charts import COLOURS, WIDTH, Mark, Series, log_chart, svg_label, svg_picture
from torchgauge.report.model import Block, Cell, Cells, Section, Table, Text, figures, more, names, notes, table
from torchgauge.report.predictions import Answer, PredictionReport
from torchgauge.report.registry import FORECAST
from torchgauge.units import (
    format_count,
    format_joules,
    format_percent,
    format_seconds,
    format_value,
    format_whole_percent,
)

_FITS = {"fits": "yes", "does not fit": "no", "too close": "close"}
_MAX_OPS, _MAX_MODULES, _MAX_ANSWERED = 10, 10, 8
# Members of a forecast that are not single values; a row leaves them out.
_NESTED = ("ops", "modules", "warnings", "sources", "per_sample")


@dataclass(frozen=True)
class ForecastReport(PredictionReport):
    forecasts: Sequence[ForecastFacts]

    kind = FORECAST
    title = "time and energy"
    picture_title = "Throughput and energy"

    @property
    def target(self) -> str:
        return self.forecasts[0].target

    def members(self) -> dict[str, object]:
        return {"forecast": [forecast_row(row) for row in self.forecasts], "best_batch": self.best_batches()}

    def best_batches(self) -> dict[str, int]:
        """The batch with the highest throughput among those that may fit, by device."""
        best: dict[str, ForecastFacts] = {}
        for one in self.forecasts:
            if one.batch is not None and one.fit != "does not fit":
                kept = best.get(one.device)
                if kept is None or one.samples / one.time_s > kept.samples / kept.time_s:
                    best[one.device] = one
        return {device: one.samples for device, one in best.items()}

    def table(self) -> list[dict[str, object]]:
        """A row for each device and batch, the figures of a sample among them."""
        return [
            {name: value for name, value in forecast_row(one).items() if name not in _NESTED}
            | {f"per_sample_{name}": value for name, value in one.per_sample.items()}
            for one in self.forecasts
        ]

    def answers(self) -> Iterator[Answer]:
        for row in self.forecasts[:_MAX_ANSWERED]:
            at = f", batch {row.batch}" if row.batch else ""
            span = f"{format_seconds(row.low_s)} to {format_seconds(row.high_s)}"
            fits = f"; {row.fit}" if row.fit not in (None, "fits") else ""
            yield Answer(f"{row.title}{at}", format_seconds(row.time_s), f"{span}{fits}", bool(fits))
            if len(self.forecasts) == 1:
                yield Answer("Throughput", f"{format_count(row.per_sample['throughput_per_s'])}/s", "samples")
                if row.energy_j is not None:
                    yield Answer("Energy", format_joules(row.energy_j), "of one run")
                yield Answer("Bound", row.bound, "what most of the time goes to")

    def sections(self) -> list[Section]:
        """Devices and batches, then where the time goes in the first of them."""
        first = self.forecasts[0]
        blocks: list[Block] = [_devices(self.forecasts)]
        best = self.best_batches()
        if best and len({row.batch for row in self.forecasts}) > 1:
            sizes = ", ".join(f"{name} {size}" for name, size in best.items())
            blocks.append(Text(f"Best batch by throughput: {sizes}"))
        # The sources of each device's figures, and its warnings.
        remarks: dict[str, None] = {}
        firsts: dict[str, ForecastFacts] = {}
        for row in self.forecasts:
            firsts.setdefault(row.device, row)
        for row in firsts.values():
            shares = sorted(row.sources.items(), key=lambda item: -item[1])
            parts = ", ".join(f"{format_percent(share)} {source}" for source, share in shares)
            remarks |= dict.fromkeys([f"{row.title}: kernel times {parts}; host {row.host_source}", *row.warnings])
        blocks += notes(remarks, is_remark=True)
        where = f"Where the time goes on {first.title}" + (f", batch {first.batch}" if first.batch else "")
        return [
            Section(f"{first.target}: {first.mode}, {first.execution}", tuple(blocks)),
            Section(where, tuple(_shares(first))),
        ]

    def picture(self) -> str:
        """Two charts side by side: throughput against batch, time against energy; a line per device, bars for the 90 %
        interval."""
        first = self.forecasts[0]
        pieces = [svg_label(20, 20, f"{first.target}: {first.mode}, {first.execution}", kind="title")]
        rates: list[Series] = []
        energies: list[Series] = []
        for number, device in enumerate(dict.fromkeys(row.device for row in self.forecasts)):
            colour, rows = COLOURS[number % len(COLOURS)], [row for row in self.forecasts if row.device == device]
            reached = [
                Mark(row.samples, row.samples / row.time_s, low=row.samples / row.high_s, high=row.samples / row.low_s)
                for row in rows
                if row.time_s
            ]
            used = [
                Mark(row.time_s, row.energy_j, low=row.energy_low_j, high=row.energy_high_j)
                for row in rows
                if row.energy_j
            ]
            rates.append(Series(colour, sorted(reached, key=lambda mark: mark.x)))
            energies.append(Series(colour, sorted(used, key=lambda mark: mark.x)))
            pieces.append(f'<circle cx="{74 + 120 * number}" cy="361" r="4" fill="{colour}"/>')
            pieces.append(svg_label(84 + 120 * number, 365, device))
        pieces.append(log_chart(0, 30, ("batch", format_value), ("samples per second", format_count), rates))
        axes = ("time of a run", format_seconds), ("energy of a run", format_joules)
        pieces.append(log_chart(WIDTH, 30, *axes, energies))
        return svg_picture(2 * WIDTH, 380, pieces)


def _devices(rows: Sequence[ForecastFacts]) -> Table:
    has_price = any(row.price_per_hour is not None for row in rows)
    titles = ("Batch", "Fits", "Time", "90 % interval", "Samples/s", "J/sample", "Bound")
    lines: list[Cells] = []
    for row in rows:
        each = row.per_sample
        joules, money = each["energy_j"], each["price_per_million"]
        fits = Cell(_FITS.get(row.fit or "", ""), is_warning=row.fit in ("does not fit", "too close"))
        time = format_seconds(row.time_s), f"{format_seconds(row.low_s)} to {format_seconds(row.high_s)}"
        rates = format_count(each["throughput_per_s"]), "" if joules is None else format_value(joules)
        price = ["" if money is None else f"{money:,.2f}"] if has_price else []
        lines.append((row.device, str(row.batch or ""), fits, *time, *rates, row.bound, *price))
    headings = (*names("Device"), *figures(*titles, *(("Per million",) if has_price else ())))
    return table(headings, lines)


def _shares(row: ForecastFacts) -> Iterator[Block]:
    """The kinds of ops and the modules that take the most time."""
    total = row.time_s or 1.0
    lines = []
    for (name, source, bound), ops in grouped(((op["op"], op["source"], op["bound"]), op) for op in row.ops).items():
        seconds = sum(op["time_s"] for op in ops)
        known = [(share * op["device_s"], op["device_s"]) for op in ops if (share := op["roof_share"]) is not None]
        near = format_percent(sum(least for least, _ in known) / sum(taken for _, taken in known)) if known else ""
        cells = [str(len(ops)), format_seconds(seconds), format_percent(seconds / total), near, bound or "-", source]
        lines.append((seconds, (name, *cells)))
    lines.sort(key=lambda line: -line[0])
    headings = (*names("Op"), *figures("Calls", "Time", "Share", "Of the roof", "Bound", "Source"))
    note = f"bound by compute or memory from {format_whole_percent(NEAR_THE_ROOF)} of the roof on"
    kinds = [cells for _, cells in lines[:_MAX_OPS]]
    yield table(headings, kinds, (*more(len(lines) - _MAX_OPS, "kinds of ops"), note))
    modules = sorted((one for one in row.modules if one["depth"] == 1), key=lambda one: -one["time_s"])
    if modules:
        rows = []
        for module in modules[:_MAX_MODULES]:
            joules = "" if module["energy_j"] is None else format_joules(module["energy_j"])
            rows.append(
                (module["path"], format_seconds(module["time_s"]), format_percent(module["time_s"] / total), joules)
            )
        headings = (*names("Module"), *figures("Time", "Share", "Energy"))
        yield table(headings, rows, more(len(modules) - _MAX_MODULES, "modules"))
