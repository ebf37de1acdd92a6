"""The report of `llm`: what the model is, its cache, prefill and decode, what fits and how fast; and the picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchgauge.report.charts import (
    COLOURS,
    HEIGHT,
    VERDICT_COLOURS,
    WIDTH,
    Axis,
    Mark,
    Series,
    log_chart,
    svg_label,
    svg_picture,
)
from torchgauge.report.escape import html_text
from torchgauge.report.model import (
    Block,
    Cell,
    Fact,
    Facts,
    Section,
    Table,
    Text,
    figures,
    more,
    names,
    notes,
    table,
    texts,
)
from torchgauge.report.predictions import Answer, PredictionReport
from torchgauge.report.registry import LLM
from torchgauge.units import (
    format_bytes,
    format_count,
    format_joules,
    format_percent,
    format_seconds,
    format_whole_percent,
)

if TYPE_CHECKING:
    from torchgauge.facts.language import CrossoverRow, DeviceRow, FitRow, LlmFacts, StepRow

_EXECUTED = {
    "eager": "times of the model's own code, run op by op (eager); --execution graph for a CUDA graph",
    "graph": "times of a CUDA graph that is replayed",
    "compiled": "times with torch.compile",
}
_VERDICTS = {"fits": "fits", "too close": "close", "does not fit": "no"}
_MAX_MODULES, _MAX_ANSWERED = 8, 4


@dataclass(frozen=True)
class LlmReport(PredictionReport):
    facts: LlmFacts

    kind = LLM
    title = "language model"
    picture_title = "What fits, and what a token costs"

    @property
    def target(self) -> str:
        return self.facts["target"]

    def members(self) -> dict[str, object]:
        return {"llm": self.facts}

    def table(self) -> list[dict[str, object]]:
        return without_modules((*self.facts["prefill"], *self.facts["decode"], *self.facts["speed"]))

    def answers(self) -> Iterator[Answer]:
        one, model = self.facts, self.facts["model"]
        active = model["active_params"]
        share = f"{format_count(active)} active per token" if active < model["params"] else model["type"]
        yield Answer("Parameters", format_count(model["params"]), share)
        yield Answer("Weights", format_bytes(model["weights_bytes"]), one["weights_dtype"] or "")
        cached = next((row for row in one["cache"] if row["tokens"] == one["context"]), None)
        if cached is not None:
            yield Answer("Cache", format_bytes(cached["bytes"]), f"one sequence of {one['context']:,} tokens")
        for device in one["devices"]:
            longest, count = device["longest_context"], device["most_sequences"]
            most = f"{count:,} sequences of {one['context']:,} tokens at once" if count else ""
            value = f"{longest:,} tokens" if longest else "does not fit"
            yield Answer(f"Longest context on {device['device']}", value, most, is_alarm=not longest)
        room = {(row["device"], row["context"], row["concurrent"]): row["verdict"] for row in one["fits"]}
        timed = [row for row in one["speed"] if row["tokens_per_s"]]
        held = [row for row in timed if room.get((row["device"] or "", row["tokens"], row["batch"])) != "does not fit"]
        for row in held[:_MAX_ANSWERED]:
            note = f"{row['kind']} at {row['tokens']:,} tokens, batch {row['batch']:,}"
            yield Answer(f"Tokens/s on {row['device']}", format_count(row["tokens_per_s"]), note)

    def sections(self) -> list[Section]:
        one = self.facts
        cache = f"Cache of one sequence in {one['cache_dtype']}" if one["cache_dtype"] else "Cache of one sequence"
        found = [
            Section(f"{one['target']}: {one['model']['type']}", tuple(_model(one))),
            Section("Layers", (_layers(one),)),
            Section(cache, tuple(_cache(one))),
            *_passes(one),
        ]
        if one["speed"]:
            titles = ("Batch", "Time", "90 % interval", "Tokens/s", "Bound", "J/token", "MFU", "MBU")
            rows: list[tuple[Cell | str, ...]] = []
            for row in one["speed"]:
                which = row["device"] or "", f"{row['kind']} {row['tokens']:,}", f"{row['batch']:,}"
                if row["time_s"] is None:
                    rows.append((*which, Cell(row["verdict"] or "not known", is_warning=True), *["-"] * 6))
                    continue
                time = (
                    format_seconds(row["time_s"]),
                    f"{format_seconds(row['low_s'])} to {format_seconds(row['high_s'])}",
                )
                rates = format_count(row["tokens_per_s"]), row["bound"] or "", format_joules(row["joules_per_token"])
                rows.append((*which, *time, *rates, format_whole_percent(row["mfu"]), format_whole_percent(row["mbu"])))
            remarks = [
                f"{_EXECUTED[one['execution']]}; prefill is the time to the first token",
                "MFU and MBU: shares of the peak rate and of the bandwidth; MFU is without the scores of later tokens, "
                "which a causal kernel leaves out and the FLOPs above include",
            ]
            if one["weights_dtype"] or one["cache_dtype"]:
                remarks.append("times and MBU are with weights and cache in the type that the model computes in")
            found.append(Section("Time", (table((*texts("Device", "Pass"), *figures(*titles)), rows, remarks),)))
        for device in one["devices"]:
            fits = [row for row in one["fits"] if row["device"] == device["device"]]
            capacity = format_bytes(fits[0]["capacity_bytes"])
            found.append(Section(f"What fits on {device['device']} ({capacity})", tuple(_fits(one, device, fits))))
        return found

    def picture(self) -> str:
        """A heat map of what fits on each device, costs against the context, and a roofline of prefill and decode for
        each device with known peaks."""
        one = self.facts
        pieces, top = [svg_label(20, 20, f"{one['target']}: {one['model']['type']}", kind="title")], 40.0
        for device in one["devices"]:
            rows = [row for row in one["fits"] if row["device"] == device["device"]]
            pieces.append(_heat_map(device["device"], rows, top))
            top += 74 + _CELL * len({row["context"] for row in rows})
        # FLOPs of a token of the prompt and of a step, and the bytes that a step reads, against the context.
        count = one["concurrent"][0]
        steps = [row for row in one["decode"] if row["batch"] == count]
        work = [
            Series(_BLUE, [Mark(row["tokens"], row["flops"] / row["new_tokens"]) for row in one["prefill"]], "prefill"),
            Series(_ORANGE, [Mark(row["tokens"], row["flops"] / row["new_tokens"]) for row in steps], "decode"),
        ]
        held = [Mark(row["tokens"], row["cache_bytes"]) for row in steps if row["cache_bytes"]]
        memory = [
            Series(_ORANGE, [Mark(row["tokens"], row["bytes_read"]) for row in steps], "read by a step"),
            Series(_GREEN, held, "cache"),
        ]
        context: Axis = "context, tokens", format_count
        pieces.append(log_chart(0, top, context, ("FLOPs per token", format_count), work))
        pieces.append(log_chart(WIDTH, top, context, (f"bytes, {_sequences(count)}", format_count), memory))
        top += HEIGHT + 60
        roofs = [device for device in one["devices"] if device["flops_per_s"]]
        for place, device in enumerate(roofs):
            pieces.append(_roofline(one, device, place % 2 * WIDTH, top + place // 2 * (HEIGHT + 60)))
        top += (len(roofs) + 1) // 2 * (HEIGHT + 60)
        return svg_picture(2 * WIDTH, top, pieces)


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
    rows, note = [], "figures of one layer"
    for (kind, size, reached, each, fixed), count in groups.items():
        is_window = kind.startswith("sliding-window")
        note = "figures of one layer; a window grows until it is full" if is_window else note
        growing = "" if is_window else format_bytes(each)
        rows.append((kind, str(count), format_count(size), format_count(reached), growing, format_bytes(fixed)))
    headings = (*texts("Kind"), *figures("Layers", "Parameters", "Active", "Cache per token", "Fixed cache"))
    return table(headings, rows, (note,))


def _cache(one: LlmFacts) -> Iterator[Block]:
    rows = [
        (f"{row['tokens']:,}", *map(format_bytes, (row["bytes"], row["bytes_per_token"], row["paged_bytes"])))
        for row in one["cache"]
    ]
    yield table(figures("Tokens", "Bytes", "Per token", f"In pages of {one['page_size']}"), rows)
    if one["prefix"]:
        shared = next((row["shared_bytes"] for row in one["decode"] if row["tokens"] == one["context"]), 0)
        yield Text(f"The first {one['prefix']:,} tokens are shared: {format_bytes(shared)}, once for all sequences.")


def _intensity(row: StepRow | CrossoverRow) -> str:
    """FLOPs per byte."""
    value = row["arithmetic_intensity"]
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _passes(one: LlmFacts) -> Iterator[Section]:
    """Prompts, steps, and the modules of one step."""
    lines = []
    for row in one["prefill"]:
        flops = format_count(row["flops"]), format_count(row["flops"] / row["new_tokens"])
        moved = format_bytes(row["bytes_read"]), format_bytes(row["bytes_written"])
        lines.append((f"{row['tokens']:,}", *flops, *moved, _intensity(row)))
    titles = figures("Tokens", "FLOPs", "FLOPs per token", "Bytes read", "Bytes written", "FLOPs per byte")
    after = f"; the first {one['prefix']:,} tokens are in the cache already" if one["prefix"] else ""
    remark = f"logits for the last token only, as in generation{after}"
    yield Section("Prefill, one sequence", (table(titles, lines, (remark,)),))

    steps = []
    for row in one["decode"]:
        amounts = row["bytes_read"], row["weight_bytes"], row["cache_read_bytes"], row["rest_bytes"]
        nbytes = map(format_bytes, amounts)
        flops_each = format_count(row["flops"] / row["new_tokens"])
        steps.append((f"{row['tokens']:,}", f"{row['batch']:,}", flops_each, *nbytes, _intensity(row)))
    titles = figures(
        "Context", "Sequences", "FLOPs per token", "Bytes read", "Weights", "Cache", "Rest", "FLOPs per byte"
    )
    tokens = "one token"
    expected: tuple[str, ...] = (
        "the rest of the bytes read: activations, and the cache where it is copied to append to it",
    )
    if one["prefix"]:
        expected = (f"{expected[0]}, and the shared prefix again for each further sequence",)
    if drafts := one["speculative"]:
        tokens = f"{drafts['drafts']} drafted tokens and one more"
        accepted = f"with {format_percent(drafts['acceptance'])} of drafts accepted; drafting itself is not counted"
        expected += (f"{drafts['tokens_per_step']:.2f} tokens expected per step, {accepted}",)
    yield Section(f"Decode, {tokens} for each sequence", (table(titles, steps, expected),))

    step = next((row for row in one["decode"] if row["tokens"] == one["context"]), one["decode"][0])
    parts = sorted(step["modules"], key=lambda row: -row["bytes_read"])
    modules = []
    for part in parts[:_MAX_MODULES]:
        flops = format_count(part["flops"]), format_percent(part["flops"] / max(step["flops"], 1))
        share = format_percent(part["bytes_read"] / max(step["bytes_read"], 1))
        modules.append((part["path"] or "(model)", *flops, format_bytes(part["bytes_read"]), share))
    headings = (*names("Module"), *figures("FLOPs", "Share", "Bytes read", "Share"))
    shown = table(headings, modules, more(len(parts) - _MAX_MODULES, "modules"))
    yield Section(f"Modules in a decode step at {step['tokens']:,} tokens, {_sequences(step['batch'])}", (shown,))


def _sequences(count: int) -> str:
    return f"{count:,} sequence{'s' if count > 1 else ''}"


def _fits(one: LlmFacts, device: DeviceRow, rows: Sequence[FitRow]) -> Iterator[Block]:
    counts = list(dict.fromkeys(row["concurrent"] for row in rows))
    cells = {(row["context"], row["concurrent"]): row for row in rows}
    lines = []
    for context in dict.fromkeys(row["context"] for row in rows):
        line: list[Cell | str] = [f"{context:,}"]
        for count in counts:
            row = cells[context, count]
            many = row["fewest_devices"]
            other = f" ({many} devices)" if row["verdict"] == "does not fit" and many else ""
            text = f"{_VERDICTS[row['verdict']]}: {format_bytes(row['used_bytes'])}{other}"
            line.append(Cell(text, is_warning=row["verdict"] != "fits"))
        lines.append(line)
    note = "in brackets: devices with tensor parallelism, a lower bound; close: too close to call"
    yield table(figures("Context", *map(_sequences, counts)), lines, (note,))
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
        remark = "beyond it, reading the cache is the limit" if upto else "at any context and number of sequences"
        facts.append(("compute-bound up to a context of", f"about {upto:,}" if upto else "never compute-bound", remark))
    yield Facts(facts)


def without_modules(rows: Iterable[StepRow]) -> list[dict[str, object]]:
    """A row for each pass."""
    return [{name: value for name, value in row.items() if name != "modules"} for row in rows]


_BLUE, _ORANGE, _GREEN = COLOURS[:3]
_CELL = 30  # height of a row of the heat map


def _heat_map(device: str, rows: Sequence[FitRow], top: float) -> str:
    """Contexts down, sequences across; the fuller, the darker."""
    contexts, counts = (list(dict.fromkeys(row[name] for row in rows)) for name in ("context", "concurrent"))
    wide = min((2 * WIDTH - 140) / len(counts), 180)
    capacity = format_bytes(rows[0]["capacity_bytes"])
    pieces = [svg_label(20, top + 14, f"What fits on {device} ({capacity}): context × sequences", kind="title")]
    for x, count in enumerate(counts):
        pieces.append(svg_label(120 + wide * (x + 0.5), top + 34, _sequences(count), "middle"))
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


def _roofline(one: LlmFacts, device: DeviceRow, left: float, top: float) -> str:
    """Passes below the roof: what they can reach at their intensity (filled), and what is predicted (hollow)."""
    peak, bandwidth, ridge = device["flops_per_s"] or 0.0, device["bytes_per_s"] or 0.0, device["ridge"] or 0.0

    def marks(rows: Iterable[StepRow], *, is_predicted: bool = False) -> list[Mark]:
        found = []
        for row in rows:
            title = f"{row['kind']} {row['tokens']:,} × {row['batch']:,}{', predicted' if is_predicted else ''}"
            most = min(peak, row["arithmetic_intensity"] * bandwidth)
            reached = row["flops"] / row["time_s"] if is_predicted and row["time_s"] else most
            found.append(Mark(row["arithmetic_intensity"], reached, title))
        return found

    timed = [row for row in one["speed"] if row["device"] == device["device"] and row["time_s"]]
    series = [
        Series(_BLUE, marks(one["prefill"]), "prefill", is_line=False),
        Series(_ORANGE, marks(one["decode"]), "decode", is_line=False),
    ]
    if timed:
        predicted = marks(timed, is_predicted=True)
        series.append(Series(_GREEN, predicted, "predicted", is_line=False, is_filled=False))
    across = [mark.x for each in series for mark in each.marks]
    first, last = min(*across, ridge) / 2, 2 * max(*across, ridge)
    roof = [(first, first * bandwidth), (ridge, peak), (last, peak)]
    axes = ("FLOPs per byte", format_count), (f"FLOP/s on {device['device']}", format_count)
    return log_chart(left, top, *axes, series, roof)
