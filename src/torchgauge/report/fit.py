"""The report of `fit`: a verdict per device, memory by class, the peak, what to change; and the picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchgauge.facts import FitFacts, Suggestions, fit_row
from torchgauge.report.charts import VERDICT_COLOURS, svg_label, svg_picture
from torchgauge.report.escape import html_text
from torchgauge.report.model import (
    Block,
    Cell,
    Cells,
    Chart,
    Fact,
    Facts,
    Item,
    Listing,
    Section,
    Text,
    figures,
    notes,
    table,
    texts,
)
from torchgauge.report.predictions import Answer, PredictionReport
from torchgauge.report.registry import FIT
from torchgauge.units import format_bytes, format_exact, format_percent

# The title of each class and its colour in the picture.
CLASSES = {
    "parameters": ("parameters", "#4269d0"), "buffers": ("buffers", "#6cc5b0"), "inputs": ("inputs", "#9c6b4e"),
    "gradients": ("gradients", "#efb118"), "optimizer_state": ("optimizer state", "#ff725c"),
    "activations": ("activations", "#3ca951"), "temporaries": ("temporaries", "#a463f2"),
    "workspaces": ("kernel workspaces", "#ff8ab7"), "slack": ("allocator slack", "#9498a0"),
}  # fmt: skip
_WORDS = {"fits": "fits", "does not fit": "does not fit", "too close": "too close to call"}
_NUMBERS = {
    "allocated_bytes": "allocated by tensors", "reserved_bytes": "reserved by the allocator",
    "used_bytes": "used on the device", "required_bytes": "smallest limit that works",
}  # fmt: skip
_MAX_DETAILED = 4  # predictions shown in full; the table has all
_MIN_EXTRA_FLOPS = 0.005
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _GAP = 900, 240, 90, 150, 70  # of the memory over a step in the picture
_SHOWN_ROOM = 4  # draw the capacity if it is at most this many times the reserved memory


@dataclass(frozen=True)
class FitReport(PredictionReport):
    """`suggestions` are those of each prediction; empty where they were not asked for."""

    fits: Sequence[FitFacts]
    suggestions: Sequence[Suggestions] = ()

    kind = FIT
    title = "memory"
    picture_title = "Memory over a step"

    @property
    def target(self) -> str:
        return self.fits[0].target

    def _pairs(self) -> list[tuple[FitFacts, Suggestions | None]]:
        suggestions: Sequence[Suggestions | None] = self.suggestions or [None] * len(self.fits)
        return list(zip(self.fits, suggestions, strict=True))

    def members(self) -> dict[str, object]:
        return {"fit": [fit_row(fit, suggestions) for fit, suggestions in self._pairs()]}

    def answers(self) -> Iterator[Answer]:
        for fit, suggestions in self._pairs()[:_MAX_DETAILED]:
            sizes = "".join(f", {name} {size}" for name, size in (("batch", fit.batch), ("sequence", fit.seq)) if size)
            free = fit.free_bytes
            left = f"{format_bytes(free)} free" if free >= 0 else f"{format_bytes(-free)} too much"
            note = f"{left} of {format_bytes(fit.capacity_bytes)}{sizes}"
            yield Answer(fit.title, _WORDS[fit.verdict], note, is_alarm=fit.verdict == "does not fit")
            span = fit.bounds["used_bytes"]
            yield Answer(
                f"Used on {fit.title}",
                format_bytes(fit.used_bytes),
                f"{format_bytes(span.low)} to {format_bytes(span.high)}",
            )
            if len(self.fits) == 1:
                yield Answer("Allocated by tensors", format_bytes(fit.allocated_bytes))
                yield Answer("Reserved by the allocator", format_bytes(fit.reserved_bytes))
            if suggestions and suggestions["max_batch"] is not None:
                yield Answer(f"Largest batch on {fit.title}", format_exact(suggestions["max_batch"]))

    def sections(self) -> list[Section]:
        """A table where there are several predictions, then each of them."""
        found = [Section(headline(fit), tuple(_blocks(fit, more))) for fit, more in self._pairs()[:_MAX_DETAILED]]
        if len(self.fits) == 1:
            return found
        # The batch and the sequence are columns where they were given.
        has_batch, has_seq = any(fit.batch for fit in self.fits), any(fit.seq for fit in self.fits)
        sizes = [*(["Batch"] if has_batch else []), *(["Sequence"] if has_seq else [])]
        headings = (*texts("Device"), *figures(*sizes, "Verdict", "Used", "At least", "At most", "Free"))
        rows: list[Cells] = []
        for fit in self.fits:
            given = [str(fit.batch or "")] * has_batch + [str(fit.seq or "")] * has_seq
            verdict, span = Cell(_WORDS[fit.verdict], is_warning=fit.verdict != "fits"), fit.bounds["used_bytes"]
            nbytes = map(format_bytes, (fit.used_bytes, span.low, span.high, max(fit.free_bytes, 0)))
            rows.append((fit.title, *given, verdict, *nbytes))
        return [Section(f"{self.target}: memory", (table(headings, rows),)), *found]

    def picture(self) -> str:
        """Memory by class over a step for each prediction, with the device's capacity as a line. Above them, where
        there are several, a cell for each: devices or lengths down, batches across."""
        pieces, top = [], 10.0
        if len(self.fits) > 1:
            down = list(dict.fromkeys((fit.title, fit.seq) for fit in self.fits))
            across = list(dict.fromkeys(fit.batch for fit in self.fits))
            wide, high = min((_WIDTH - 140) / len(across), 150), 30
            for x, batch in enumerate(across):
                pieces.append(svg_label(150 + wide * (x + 0.5), top + 14, f"batch {batch or 1}", "middle"))
            for y, (title, seq) in enumerate(down):
                pieces.append(svg_label(5, top + 40 + high * y, f"{title}{f', sequence {seq}' if seq else ''}"))
            for fit in self.fits:
                left = 150 + wide * across.index(fit.batch)
                above = top + 20 + high * down.index((fit.title, fit.seq))
                place = f'x="{left:.1f}" y="{above:.1f}" width="{wide - 2:.1f}" height="{high - 2}"'
                shade = f'fill="{VERDICT_COLOURS[fit.verdict]}" opacity="0.75"'
                pieces.append(f"<rect {place} {shade}><title>{html_text(headline(fit))}</title></rect>")
                pieces.append(svg_label(left + wide / 2, above + 19, format_bytes(fit.used_bytes), "middle"))
            top += 40 + high * len(down) + 20
        for fit in self.fits[:_MAX_DETAILED]:
            pieces.append(_stack(fit, top))
            top += _HEIGHT + _GAP + 40
        return svg_picture(_LEFT + _WIDTH + _RIGHT, top, pieces)


def headline(row: FitFacts) -> str:
    free = row.free_bytes
    left = f"{format_bytes(free)} free" if free >= 0 else f"{format_bytes(-free)} too much"
    verdict = f"{_WORDS[row.verdict]} ({left} of {format_bytes(row.capacity_bytes)})"
    named = {"batch": row.batch, "sequence": row.seq}
    sizes = "".join(f", {name} {size}" for name, size in named.items() if size)
    return f"{row.target} on {row.title}{sizes}: {verdict}"


def _blocks(row: FitFacts, suggestions: Suggestions | None) -> Iterator[Block]:
    spans = row.bounds
    facts: list[Fact] = [
        (title, format_bytes(getattr(row, key)), f"{format_bytes(spans[key].low)} to {format_bytes(spans[key].high)}")
        for key, title in _NUMBERS.items()
    ]
    execution = "as a CUDA graph" if row.execution == "graph" else "eager"
    yield Text(f"{row.mode}, {execution}; capacity: {row.capacity_source}", is_remark=True)
    yield Facts(facts)
    classes = {CLASSES[name][0]: nbytes for name, nbytes in row.by_class.items() if nbytes > 0}
    classes["context"] = row.used_bytes - row.reserved_bytes
    yield Chart(
        tuple(
            (title, nbytes, f"{format_bytes(nbytes)}, {format_percent(nbytes / row.used_bytes)}")
            for title, nbytes in classes.items()
        )
    )
    peak, at_peak = row.peak, list[Fact]()
    if "op" in peak:
        at_peak.append(("peak", f"{peak['phase']}, {peak['op']}", peak["module"]))
    held = [f"{one['module']} {format_bytes(one['bytes'])}" for one in row.holders if one["module"]][:3]
    if held:
        at_peak.append(("largest modules", ", ".join(held), ""))
    if row.loss:
        at_peak.append(("loss", row.loss, ""))
    if suggestions:
        largest = {"largest batch that fits": suggestions["max_batch"],
                   "longest sequence that fits": suggestions["max_seq"]}  # fmt: skip
        at_peak += [(name, str(size) if size else "none (1 does not fit)", "") for name, size in largest.items()
                    if size is not None]  # fmt: skip
    if at_peak:
        yield Facts(at_peak)
    yield from notes(row.warnings, is_remark=True)
    items = []
    for remedy in suggestions["remedies"] if suggestions else ():
        extra = remedy["extra_flops"]
        more_work = f"{format_percent(extra)} more FLOPs" if extra > _MIN_EXTRA_FLOPS else ""
        outcome = ", ".join(filter(None, (_WORDS[remedy["verdict"]], more_work, remedy["effect"])))
        items.append(Item(f"{remedy['name']}: {format_bytes(remedy['used_bytes'])} ({outcome})", code=remedy["code"]))
    if items:
        yield Text("What to change")
        yield Listing(items)


def _stack(row: FitFacts, top: float) -> str:
    """The memory of each class over the step, one above the other."""
    course = row.course
    kinds = [name for name in CLASSES if any(course.get(name, ()))]
    count = len(course[kinds[0]]) if kinds else 0
    room = row.capacity_bytes - row.context_bytes
    most = max(row.reserved_bytes, room if room < _SHOWN_ROOM * row.reserved_bytes else 0)
    pieces = [svg_label(_LEFT, top + 14, headline(row), kind="title")]

    def y(nbytes: float) -> float:
        return top + 30 + _HEIGHT * (1 - nbytes / most)

    below = [0] * count
    for place, name in enumerate(kinds):
        above = [low + nbytes for low, nbytes in zip(below, course[name], strict=True)]
        xs = [_LEFT + _WIDTH * (i + 0.5) / count for i in range(count)]
        points = [f"{x:.1f},{y(value):.1f}" for x, value in zip(xs, above, strict=True)]
        points += [f"{x:.1f},{y(value):.1f}" for x, value in reversed(list(zip(xs, below, strict=True)))]
        title, colour = CLASSES[name]
        pieces.append(f'<polygon points="{" ".join(points)}" fill="{colour}"><title>{title}</title></polygon>')
        left = _LEFT + place % 6 * 150
        under = top + _HEIGHT + 50 + place // 6 * 18
        pieces.append(f'<rect x="{left}" y="{under - 10}" width="10" height="10" fill="{colour}"/>')
        pieces.append(svg_label(left + 14, under, title))
        below = above
    for nbytes, title in ((0, "0"), (row.allocated_bytes, format_bytes(row.allocated_bytes))):
        pieces.append(svg_label(_LEFT - 6, y(nbytes) + 4, title, "end"))
    for nbytes, title, colour in ((row.reserved_bytes, "reserved", "#9498a0"), (room, "available", "#d62728")):
        if nbytes <= most:
            line = y(nbytes)
            ends = f'x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{line:.1f}" y2="{line:.1f}"'
            pieces.append(f'<line {ends} stroke="{colour}" stroke-width="2" stroke-dasharray="6 4"/>')
            pieces.append(svg_label(_LEFT + _WIDTH + 6, line + 4, f"{title}: {format_bytes(nbytes)}"))
    return "".join(pieces)
