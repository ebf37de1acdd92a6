"""The report of `llm`: what the model is, its cache, prefill and decode, what fits and how fast; and the picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import TYPE_CHECKING, NamedTuple

from torchgauge.report.documents import VERDICT_COLOURS, PredictionReport, log_ticks, svg_label
from torchgauge.report.escape import html_text
from torchgauge.report.model import Block, Cell, Fact, Facts, Section, Table, Text, figures, more, notes, texts
from torchgauge.report.registry import LLM
from torchgauge.units import format_bytes, format_count, format_joules, format_percent, format_seconds

if TYPE_CHECKING:
    from torchgauge.facts.language import CrossoverRow, DeviceRow, FitRow, LlmFacts, StepRow

_VERDICTS = {"fits": "fits", "too close": "close", "does not fit": "no"}
_MAX_MODULES = 8


@dataclass(frozen=True)
class LlmReport(PredictionReport):
    facts: LlmFacts

    kind = LLM
    title = "language model"

    @property
    def target(self) -> str:
        return self.facts["target"]

    def members(self) -> dict[str, object]:
        return {"llm": self.facts}

    def table(self) -> list[dict[str, object]]:
        return without_modules((*self.facts["prefill"], *self.facts["decode"], *self.facts["speed"]))

    def sections(self) -> list[Section]:
        one = self.facts
        step = next((row for row in one["decode"] if row["tokens"] == one["context"]), one["decode"][0])
        sequences = f"{step['batch']:,} sequence{'s' if step['batch'] > 1 else ''}"
        cache = f"Cache of one sequence in {one['cache_dtype']}" if one["cache_dtype"] else "Cache of one sequence"
        drafts = one["speculative"]
        tokens = f"{drafts['drafts']} drafted tokens and one more" if drafts else "one token"
        found = [
            Section(f"{one['target']}: {one['model']['type']}", tuple(_model(one))),
            Section("Layers", (_layers(one),)),
            Section(cache, tuple(_cache(one))),
            Section("Prefill, one sequence", tuple(_prefill(one))),
            Section(f"Decode, {tokens} for each sequence", (_decode(one),)),
            Section(f"Modules in a decode step at {step['tokens']:,} tokens, {sequences}", (_modules(step),)),
        ]
        if one["speed"]:
            found.append(Section("Time", tuple(_speed(one))))
        for device in one["devices"]:
            rows = [row for row in one["fits"] if row["device"] == device["device"]]
            capacity = format_bytes(rows[0]["capacity_bytes"])
            found.append(Section(f"What fits on {device['device']} ({capacity})", tuple(_fits(one, device, rows))))
        return found

    def picture(self) -> str:
        """For each device what fits, as a heat map; costs against the context; for each device with known peaks the
        roofline of prefill and decode."""
        one = self.facts
        pieces, top = [svg_label(20, 20, f"{one['target']}: {one['model']['type']}", kind="title")], 40.0
        for device in one["devices"]:
            rows = [row for row in one["fits"] if row["device"] == device["device"]]
            pieces.append(_heat_map(device["device"], rows, top))
            top += 74 + _CELL * len({row["context"] for row in rows})
        pieces.append(_costs(one, top))
        top += _HEIGHT + 60
        roofs = [device for device in one["devices"] if device["flops_per_s"]]
        for place, device in enumerate(roofs):
            pieces.append(_roofline(one, device, place % 2 * _WIDTH, top + place // 2 * (_HEIGHT + 60)))
        top += (len(roofs) + 1) // 2 * (_HEIGHT + 60)
        style = (
            "text{font:12px sans-serif;fill:currentColor}.title{font-weight:bold}.grid{stroke:currentColor;opacity:.15}"
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _WIDTH} {top:.0f}" role="img">'
            f"<style>{style}</style>{''.join(pieces)}</svg>\n"
        )


def _model(one: LlmFacts) -> Iterator[Block]:
    model = one["model"]
    active, params = model["active_params"], model["params"]
    share = f"{format_count(active)} active per token ({format_percent(active / params)})" if active < params else ""
    weights = f"matrices of layers in {one['weights_dtype']}"
    limit = f"{model['context_limit']:,} tokens" if model["context_limit"] else "no limit in the config"
    rows: list[Fact] = [
        ("parameters", format_count(params), share),
        ("weights", format_bytes(model["weights_bytes"]),
         weights if one["weights_dtype"] else f"{model['bits_per_weight']:.4g} bits per weight"),
        ("embedding", format_count(model["embedding_params"]), ""),
        ("head", "tied" if model["tied"] else format_count(model["head_params"]),
         "to the embedding" if model["tied"] else ""),
        ("vocabulary", f"{model['vocabulary']:,}" if model["vocabulary"] else "not found", ""),
        ("context", limit, f"positions: {model['positions']}"),
    ]  # fmt: skip
    if one["adapter"]:
        rows.append(("adapter", f"LoRA, rank {one['adapter']['rank']}", f"on {one['adapter']['pattern']}, not merged"))
    yield Facts(rows)
    if model["not_run"]:
        parts = ", ".join(f"{row['path']} ({format_count(row['params'])})" for row in model["not_run"][:4])
        yield Text(f"not run on text: {parts}", is_remark=True)
    yield from notes(one["warnings"], is_remark=True)


def _layers(one: LlmFacts) -> Table:
    groups: dict[tuple[str, int, int, float, int], int] = {}
    for layer in one["model"]["layers"]:
        window = f" {layer['window']:,}" if layer.get("window") else ""
        kind = f"{layer['kind']}{window}, {layer['feed_forward']}"
        held = (layer["cache_bytes_per_token"], layer["cache_fixed_bytes"])
        key = (kind, layer["params"], layer["active_params"], *held)
        groups[key] = groups.get(key, 0) + 1
    return Table(
        "",
        (*texts("Kind"), *figures("Layers", "Parameters", "Active", "Cache per token", "Fixed cache")),
        tuple(
            (Cell(kind), Cell(str(count)), Cell(format_count(size)), Cell(format_count(reached)),
             Cell("" if _is_window(kind) else format_bytes(each)), Cell(format_bytes(fixed)))
            for (kind, size, reached, each, fixed), count in groups.items()
        ),
        ("each layer; a window grows until it is full",) if any(map(_is_window, (kind for kind, *_ in groups))) else
        ("each layer",),
    )  # fmt: skip


def _is_window(kind: str) -> bool:
    return kind.startswith("sliding-window")


def _cache(one: LlmFacts) -> Iterator[Block]:
    page = one["page_size"]
    yield Table(
        "",
        figures("Tokens", "Bytes", "Per token", f"In pages of {page}"),
        tuple(
            (Cell(f"{row['tokens']:,}"), Cell(format_bytes(row["bytes"])), Cell(format_bytes(row["bytes_per_token"])),
             Cell(format_bytes(row["paged_bytes"])))
            for row in one["cache"]
        ),
    )  # fmt: skip
    if one["prefix"]:
        shared = next((row["shared_bytes"] for row in one["decode"] if row["tokens"] == one["context"]), 0)
        yield Text(f"The first {one['prefix']:,} tokens are shared: {format_bytes(shared)}, once for all sequences.")


def _intensity(row: StepRow | CrossoverRow) -> str:
    """FLOPs per byte."""
    value = row["arithmetic_intensity"]
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _prefill(one: LlmFacts) -> Iterator[Block]:
    lines = [
        (Cell(f"{row['tokens']:,}"), Cell(format_count(row["flops"])),
         Cell(format_count(row["flops"] / row["new_tokens"])), Cell(format_bytes(row["bytes_read"])),
         Cell(format_bytes(row["bytes_written"])), Cell(_intensity(row)))
        for row in one["prefill"]
    ]  # fmt: skip
    titles = ("Tokens", "FLOPs", "FLOPs per token", "Bytes read", "Bytes written", "FLOPs per byte")
    after = f"; the first {one['prefix']:,} tokens were computed before" if one["prefix"] else ""
    yield Table(
        "", figures(*titles), tuple(lines), (f"output for the last token alone, as generation makes it{after}",)
    )


def _decode(one: LlmFacts) -> Table:
    titles = ("Context", "Sequences", "FLOPs per token", "Bytes read", "Weights", "Cache", "FLOPs per byte")
    lines = [
        (Cell(f"{row['tokens']:,}"), Cell(f"{row['batch']:,}"), Cell(format_count(row["flops"] / row["new_tokens"])),
         Cell(format_bytes(row["bytes_read"])), Cell(format_bytes(row["weight_bytes"])),
         Cell(format_bytes(row["cache_bytes"])), Cell(_intensity(row)))
        for row in one["decode"]
    ]  # fmt: skip
    drafts = one["speculative"]
    note = (
        (f"{drafts['tokens_per_step']:.2f} tokens expected of a step, with {format_percent(drafts['acceptance'])} of "
         "drafts accepted; drafting itself is not counted",)
        if drafts else ()
    )  # fmt: skip
    return Table("", figures(*titles), tuple(lines), note)


def _modules(step: StepRow) -> Table:
    parts = sorted(step["modules"], key=lambda row: -row["bytes_read"])
    return Table(
        "",
        (*texts("Module"), *figures("FLOPs", "Share", "Bytes read", "Share")),
        tuple(
            (Cell(name=row["path"] or "(model)"), Cell(format_count(row["flops"])),
             Cell(format_percent(row["flops"] / max(step["flops"], 1))), Cell(format_bytes(row["bytes_read"])),
             Cell(format_percent(row["bytes_read"] / max(step["bytes_read"], 1))))
            for row in parts[:_MAX_MODULES]
        ),
        more(len(parts) - _MAX_MODULES, "modules"),
    )  # fmt: skip


def _speed(one: LlmFacts) -> Iterator[Block]:
    titles = ("Batch", "Time", "90 % interval", "Tokens/s", "Bound", "J/token", "MFU", "MBU")
    yield Table(
        "",
        (*texts("Device", "Pass"), *figures(*titles)),
        tuple(
            (Cell(row["device"] or ""), Cell(f"{row['kind']} {row['tokens']:,}"), Cell(f"{row['batch']:,}"),
             Cell(format_seconds(row["time_s"])),
             Cell(f"{format_seconds(row['low_s'])} to {format_seconds(row['high_s'])}"),
             Cell(format_count(row["tokens_per_s"])), Cell(row["bound"] or ""),
             Cell(format_joules(row["joules_per_token"])), Cell(f"{row['mfu']:.0%}"),
             Cell(f"{row['mbu']:.0%}"))
            for row in one["speed"]
        ),
        ("prefill is the time to the first token; MFU and MBU: shares of the peak rate and of the bandwidth",),
    )  # fmt: skip


def _fits(one: LlmFacts, device: DeviceRow, rows: Sequence[FitRow]) -> Iterator[Block]:
    counts = list(dict.fromkeys(row["concurrent"] for row in rows))
    cells = {(row["context"], row["concurrent"]): row for row in rows}
    lines = []
    for context in dict.fromkeys(row["context"] for row in rows):
        line = [Cell(f"{context:,}")]
        for count in counts:
            row = cells[context, count]
            many = row["fewest_devices"]
            other = f" ({many} devices)" if row["verdict"] == "does not fit" and many else ""
            text = f"{_VERDICTS[row['verdict']]}: {format_bytes(row['used_bytes'])}{other}"
            line.append(Cell(text, is_warning=row["verdict"] != "fits"))
        lines.append(tuple(line))
    headings = figures("Context", *(f"{count:,} sequence{'s' if count > 1 else ''}" for count in counts))
    yield Table("", headings, tuple(lines),
                ("in brackets: devices with tensor parallelism, a lower bound; close: too close to call",))  # fmt: skip
    longest, most = device["longest_context"], device["most_sequences"]
    facts: list[Fact] = [
        ("longest context", f"{longest:,} tokens" if longest else "none fits", "one sequence"),
        ("most sequences", f"{most:,}" if most else "none fits", f"{one['context']:,} tokens each"),
    ]
    for turn in device["crossovers"]:
        value = f"from {turn['batch']:,} sequences" if turn["batch"] else "never"
        reached = f"{_intensity(turn)} FLOPs per byte{'' if turn['batch'] else ' at most'}"
        remark = f"at {turn['context']:,} tokens: {reached}, ridge {turn['ridge']:.0f}"
        facts.append(("decode compute-bound", value, remark))
    if device["crossovers"]:
        upto = device["compute_bound_context"]
        remark = "beyond, each sequence reads too much cache" if upto else "at any context and number of sequences"
        facts.append(("up to a context of", f"about {upto:,}" if upto else "never compute-bound", remark))
    yield Facts(facts)


def without_modules(rows: Iterable[StepRow]) -> list[dict[str, object]]:
    """A row for each pass."""
    return [{name: value for name, value in row.items() if name != "modules"} for row in rows]


# --- the picture ------------------------------------------------------------------------------------------------------

# Colours that stay apart for colour-blind readers (Okabe and Ito).
_BLUE, _ORANGE, _GREEN = "#0072b2", "#d55e00", "#009e73"
_WIDTH, _HEIGHT, _CELL = 460, 300, 30


class _Mark(NamedTuple):
    x: float
    y: float
    title: str


def _heat_map(device: str, rows: Sequence[FitRow], top: float) -> str:
    """Contexts down, sequences across; the fuller, the darker."""
    contexts, counts = (list(dict.fromkeys(row[name] for row in rows)) for name in ("context", "concurrent"))
    wide = min((2 * _WIDTH - 140) / len(counts), 180)
    capacity = format_bytes(rows[0]["capacity_bytes"])
    pieces = [svg_label(20, top + 14, f"What fits on {device} ({capacity}): context × sequences", kind="title")]
    for x, count in enumerate(counts):
        pieces.append(
            svg_label(120 + wide * (x + 0.5), top + 34, f"{count:,} sequence{'s' if count > 1 else ''}", "middle")
        )
    for y, context in enumerate(contexts):
        pieces.append(svg_label(110, top + 60 + _CELL * y, f"{context:,}", "end"))
    for row in rows:
        left = 120 + wide * counts.index(row["concurrent"])
        above = top + 40 + _CELL * contexts.index(row["context"])
        full = min(row["used_bytes"] / row["capacity_bytes"], 1.0)
        place = f'x="{left:.1f}" y="{above:.1f}" width="{wide - 2:.1f}" height="{_CELL - 2}"'
        text = f"{format_bytes(row['used_bytes'])}, {format_percent(row['used_bytes'] / row['capacity_bytes'])}"
        title = f"{row['context']:,} tokens × {row['concurrent']:,}: {row['verdict']}, {text}"
        shade = f'fill="{VERDICT_COLOURS[row["verdict"]]}" fill-opacity="{0.25 + 0.6 * full:.2f}"'
        pieces.append(f"<rect {place} {shade}><title>{html_text(title)}</title></rect>")
        pieces.append(svg_label(left + wide / 2, above + 19, text, "middle"))
    return "".join(pieces)


def _costs(one: LlmFacts, top: float) -> str:
    """FLOPs of a token of the prompt and of a step, and the bytes that a step reads, against the context."""
    count = one["concurrent"][0]
    steps = [row for row in one["decode"] if row["batch"] == count]
    arithmetic = {
        ("prefill", _BLUE): [_Mark(row["tokens"], row["flops"] / row["new_tokens"], "") for row in one["prefill"]],
        ("decode", _ORANGE): [_Mark(row["tokens"], row["flops"] / row["new_tokens"], "") for row in steps],
    }
    memory = {
        ("read by a step", _ORANGE): [_Mark(row["tokens"], row["bytes_read"], "") for row in steps],
        ("cache", _GREEN): [_Mark(row["tokens"], row["cache_bytes"], "") for row in steps if row["cache_bytes"]],
    }
    of = f"{count:,} sequence{'s' if count > 1 else ''}"
    return _chart(0, top, "context, tokens", "FLOPs per token", arithmetic, joined=True) + _chart(
        _WIDTH, top, "context, tokens", f"bytes, {of}", memory, joined=True
    )


def _roofline(one: LlmFacts, device: DeviceRow, left: float, top: float) -> str:
    """Passes below the roof: what they can reach at their intensity (filled), and what is predicted (hollow)."""
    peak, bandwidth, ridge = device["flops_per_s"] or 0.0, device["bytes_per_s"] or 0.0, device["ridge"] or 0.0

    def mark(row: StepRow, reached: float, remark: str = "") -> _Mark:
        title = f"{row['kind']} {row['tokens']:,} × {row['batch']:,}{remark}"
        return _Mark(row["arithmetic_intensity"], reached, title)

    series = {
        (kind, colour): [mark(row, min(peak, row["arithmetic_intensity"] * bandwidth)) for row in rows]
        for kind, colour, rows in (("prefill", _BLUE, one["prefill"]), ("decode", _ORANGE, one["decode"]))
    }
    timed = [
        mark(row, row["flops"] / row["time_s"], ", predicted")
        for row in one["speed"] if row["device"] == device["device"] and row["time_s"]
    ]  # fmt: skip
    if timed:
        series["predicted", _GREEN] = timed
    across = [mark.x for own in series.values() for mark in own]
    first, last = min(*across, ridge) / 2, 2 * max(*across, ridge)
    roof = [(first, first * bandwidth), (ridge, peak), (last, peak)]
    return _chart(left, top, "FLOPs per byte", f"FLOP/s on {device['device']}", series, joined=False, roof=roof)


def _chart(
    left: float,
    top: float,
    across: str,
    upward: str,
    series: Mapping[tuple[str, str], Sequence[_Mark]],
    *,
    joined: bool,
    roof: Sequence[tuple[float, float]] = (),
) -> str:
    """Marks by name and colour, both axes logarithmic; `roof` is a line above them."""
    x0, x1, y0, y1 = left + 80, left + _WIDTH - 20, top + _HEIGHT - 30, top + 30
    places = [(mark.x, mark.y) for own in series.values() for mark in own] + list(roof)
    if not places:
        return ""
    x_low, x_high, y_low, y_high = (
        end(log10(place[axis]) for place in places) + room for axis in (0, 1) for end, room in ((min, -0.1), (max, 0.1))
    )

    def x_of(value: float) -> float:
        return x0 + (log10(value) - x_low) / (x_high - x_low) * (x1 - x0)

    def y_of(value: float) -> float:
        return y0 - (log10(value) - y_low) / (y_high - y_low) * (y0 - y1)

    pieces = [f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="currentColor"/>', svg_label(x0, y1 - 10, upward)]
    pieces.append(svg_label((x0 + x1) / 2, y0 + 36, across, "middle"))
    for tick in log_ticks(x_low, x_high):
        pieces.append(svg_label(x_of(tick), y0 + 18, format_count(tick), "middle"))
    for tick in log_ticks(y_low, y_high):
        pieces.append(f'<path d="M{x0} {y_of(tick):.1f}H{x1}" class="grid"/>')
        pieces.append(svg_label(x0 - 6, y_of(tick) + 4, format_count(tick), "end"))
    if roof:
        line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in roof)
        pieces.append(f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="2"/>')
    for number, ((name, colour), own) in enumerate(series.items()):
        fill = "none" if name == "predicted" else colour
        at = f'cx="{x1 - 110}" cy="{y0 - 14 * (number + 1)}" r="4"'
        pieces.append(f'<circle {at} fill="{fill}" stroke="{colour}"/>')
        pieces.append(svg_label(x1 - 100, y0 - 14 * (number + 1) + 4, name))
        if joined:
            line = " ".join(f"{x_of(mark.x):.1f},{y_of(mark.y):.1f}" for mark in own)
            pieces.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for mark in own:
            title = f"<title>{html_text(mark.title)}</title>" if mark.title else ""
            at = f'cx="{x_of(mark.x):.1f}" cy="{y_of(mark.y):.1f}" r="4"'
            pieces.append(f'<circle {at} fill="{fill}" stroke="{colour}">{title}</circle>')
    return "".join(pieces)
