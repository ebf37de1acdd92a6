"""The report of `forecast`: a table of devices and batches, where the time goes, and the picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import NamedTuple

from torchgauge.facts import ForecastFacts, OpForecast, forecast_row
from torchgauge.report.documents import PredictionReport, log_ticks
from torchgauge.report.escape import html_text
from torchgauge.report.model import Block, Cell, Section, Table, Text, figures, more, notes, texts
from torchgauge.report.registry import FORECAST
from torchgauge.units import format_count, format_joules, format_percent, format_seconds, format_value

_FITS = {"fits": "yes", "does not fit": "no", "too close": "close"}
_MAX_OPS, _MAX_MODULES = 10, 10
# Of a forecast, what is not one value: left out of a row.
_NESTED = ("ops", "modules", "warnings", "sources", "per_sample")


@dataclass(frozen=True)
class ForecastReport(PredictionReport):
    forecasts: Sequence[ForecastFacts]

    kind = FORECAST
    title = "time and energy"

    @property
    def target(self) -> str:
        return self.forecasts[0].target

    def members(self) -> dict[str, object]:
        return {"forecast": [forecast_row(row) for row in self.forecasts], "best_batch": self.best_batches()}

    def best_batches(self) -> dict[str, int]:
        """By device the batch with the highest throughput among those that may fit."""
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

    def sections(self) -> list[Section]:
        """Devices and batches, then where the time goes in the first of them."""
        first = self.forecasts[0]
        blocks: list[Block] = [_devices(self.forecasts)]
        best = self.best_batches()
        if best and len({row.batch for row in self.forecasts}) > 1:
            sizes = ", ".join(f"{name} {size}" for name, size in best.items())
            blocks.append(Text(f"Best batch by throughput: {sizes}"))
        # Where the figures of each device are from, and its warnings.
        remarks: dict[str, None] = {}
        firsts: dict[str, ForecastFacts] = {}
        for row in self.forecasts:
            firsts.setdefault(row.device, row)
        for row in firsts.values():
            shares = sorted(row.sources.items(), key=lambda item: -item[1])
            parts = ", ".join(f"{format_percent(share)} {source}" for source, share in shares)
            remarks |= dict.fromkeys([f"{row.title}: {parts}; host: {row.host_source}", *row.warnings])
        blocks += notes(remarks, is_remark=True)
        where = f"Where the time goes on {first.title}" + (f", batch {first.batch}" if first.batch else "")
        return [
            Section(f"{first.target}: {first.mode}, {first.execution}", tuple(blocks)),
            Section(where, tuple(_shares(first))),
        ]

    def picture(self) -> str:
        """Two charts side by side: throughput against batch, time against energy; a line per device, bars for the 90 %
        interval. Both axes are logarithmic."""
        rows = self.forecasts
        devices = list(dict.fromkeys(row.device for row in rows))
        colour = {device: _COLOURS[number % len(_COLOURS)] for number, device in enumerate(devices)}
        left = [
            _Point(row.device, row.samples, row.samples / row.time_s, row.samples / row.high_s, row.samples / row.low_s)
            for row in rows if row.time_s
        ]  # fmt: skip
        right = [
            _Point(row.device, row.time_s, row.energy_j, row.energy_low_j or 0.0, row.energy_high_j or 0.0)
            for row in rows if row.energy_j
        ]  # fmt: skip
        parts = [_chart(left, 0, ("batch", format_value), ("samples per second", format_count), colour)]
        if right:
            axes = ("time of a run", format_seconds), ("energy of a run", format_joules)
            parts.append(_chart(right, 460, *axes, colour))
        keys = "".join(
            f'<text x="{70 + 120 * number}" y="375" fill="{colour[device]}">● {html_text(device)}</text>'
            for number, device in enumerate(devices)
        )
        title = html_text(f"{rows[0].target}: {rows[0].mode}, {rows[0].execution}")
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 390" font-family="sans-serif" font-size="12">'
            f'<rect width="920" height="390" fill="white"/><text x="20" y="22" font-size="14">{title}</text>'
            f"{''.join(parts)}{keys}</svg>\n"
        )


def _devices(rows: Sequence[ForecastFacts]) -> Table:
    has_price = any(row.price_per_hour is not None for row in rows)
    titles = ("Batch", "Fits", "Time", "90 % interval", "Samples/s", "J/sample", "Bound")
    lines = []
    for row in rows:
        each = row.per_sample
        joules, money = each["energy_j"], each["price_per_million"]
        cells = [
            Cell(name=row.device),
            Cell(str(row.batch or "")),
            Cell(_FITS.get(row.fit or "", ""), is_warning=row.fit in ("does not fit", "too close")),
            Cell(format_seconds(row.time_s)),
            Cell(f"{format_seconds(row.low_s)} to {format_seconds(row.high_s)}"),
            Cell(format_count(each["throughput_per_s"])),
            Cell("" if joules is None else format_value(joules)),
            Cell(row.bound),
        ]
        lines.append((*cells, *((Cell("" if money is None else f"{money:,.2f}"),) if has_price else ())))
    headings = (*texts("Device"), *figures(*titles, *(("Per million",) if has_price else ())))
    return Table("", headings, tuple(lines))


def _shares(row: ForecastFacts) -> Iterator[Block]:
    """The kinds of ops and the modules that take the most time."""
    total = row.time_s or 1.0
    groups: dict[tuple[str, str, str], list[OpForecast]] = {}
    for op in row.ops:
        groups.setdefault((op["op"], op["source"], op["bound"]), []).append(op)
    lines = []
    for (name, source, bound), ops in groups.items():
        seconds, device = sum(op["time_s"] for op in ops), sum(op["device_s"] for op in ops)
        roof = sum((op["roof_share"] or 0.0) * op["device_s"] for op in ops) / device if device else None
        near = "" if roof is None else format_percent(roof)
        cells = [str(len(ops)), format_seconds(seconds), format_percent(seconds / total), near, bound, source]
        lines.append((seconds, (Cell(name=name), *map(Cell, cells))))
    lines.sort(key=lambda line: -line[0])
    headings = (*texts("Op"), *figures("Calls", "Time", "Share", "Of the roof", "Bound", "Source"))
    shown = tuple(cells for _, cells in lines[:_MAX_OPS])
    yield Table("", headings, shown, more(len(lines) - _MAX_OPS, "kinds of ops"))
    modules = sorted((one for one in row.modules if one["depth"] == 1), key=lambda one: -one["time_s"])
    if modules:
        found = tuple(
            (
                Cell(name=module["path"]),
                Cell(format_seconds(module["time_s"])),
                Cell(format_percent(module["time_s"] / total)),
                Cell("" if module["energy_j"] is None else f"{format_value(module['energy_j'])} J"),
            )
            for module in modules[:_MAX_MODULES]
        )
        headings = (*texts("Module"), *figures("Time", "Share", "Energy"))
        yield Table("", headings, found, more(len(modules) - _MAX_MODULES, "modules"))


# Colours that stay apart for colour-blind readers (Okabe and Ito).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


class _Point(NamedTuple):
    device: str
    x: float
    y: float
    low: float
    high: float


Axis = tuple[str, Callable[[float], str]]  # its title, and how its values are written


def _chart(points: Sequence[_Point], left: int, across: Axis, upward: Axis, colour: Mapping[str, str]) -> str:
    x0, x1, y0, y1 = left + 70, left + 430, 310, 50
    xs = [point.x for point in points]
    ys = [value for point in points for value in (point.y, point.low, point.high)]
    x_low, x_high = log10(min(xs)) - 0.05, log10(max(xs)) + 0.05
    y_low, y_high = log10(min(ys)) - 0.05, log10(max(ys)) + 0.05

    def x_of(value: float) -> float:
        return round(x0 + (log10(value) - x_low) / (x_high - x_low) * (x1 - x0), 1)

    def y_of(value: float) -> float:
        return round(y0 - (log10(value) - y_low) / (y_high - y_low) * (y0 - y1), 1)

    parts = [f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="#444"/>']
    for tick in log_ticks(x_low, x_high):
        parts.append(f'<text x="{x_of(tick)}" y="{y0 + 18}" text-anchor="middle">{html_text(across[1](tick))}</text>')
    for tick in log_ticks(y_low, y_high):
        y = y_of(tick)
        parts.append(f'<path d="M{x0} {y}H{x1}" stroke="#ddd"/>')
        parts.append(f'<text x="{x0 - 8}" y="{y + 4}" text-anchor="end">{html_text(upward[1](tick))}</text>')
    parts.append(f'<text x="{(x0 + x1) / 2}" y="{y0 + 38}" text-anchor="middle">{html_text(across[0])}</text>')
    parts.append(f'<text x="{x0}" y="{y1 - 10}">{html_text(upward[0])}</text>')
    for device, shade in colour.items():
        own = sorted(point for point in points if point.device == device)
        line = " ".join(f"{x_of(point.x)},{y_of(point.y)}" for point in own)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{shade}" stroke-width="1.5"/>')
        for _, x, y, low, high in own:
            parts.append(f'<path d="M{x_of(x)} {y_of(low)}V{y_of(high)}" stroke="{shade}" stroke-opacity="0.5"/>')
            parts.append(f'<circle cx="{x_of(x)}" cy="{y_of(y)}" r="3.5" fill="{shade}"/>')
    return "".join(parts)
