"""The pieces of the text report, from its data to lines."""

from __future__ import annotations

from collections.abc import Sequence

from torchgauge.facts import View
from torchgauge.report.columns import format_shapes
from torchgauge.report.coverage import coverage, unused_modules
from torchgauge.report.distribution import Slice, by_category, by_phase, layer_kinds
from torchgauge.report.escape import visible
from torchgauge.report.layout import Heading, Line, Span, lay_out, wrap
from torchgauge.report.options import Options
from torchgauge.report.ranking import THE_MODEL, rank_modules, rank_ops
from torchgauge.units import format_bytes, format_count, format_exact, format_percent

RANKED = 8
LAYER_KINDS = 12


def heading(text: str) -> Line:
    return (Span(text, "heading"),)


def text_cell(text: str, style: str = "") -> Line:
    return (Span(visible(text), style),)


def figure(text: str) -> Line:
    """A zero is dimmed, so that the eye finds what costs."""
    return (Span(text, "dim" if text in ("0", "0 B", "0.0 %", "-") else "figure"),)


def work(text: str, is_known: bool) -> Line:
    return figure(text) if is_known else (Span("?", "warning"),)


def expensive_modules(view: View, options: Options) -> list[Line]:
    ranked = rank_modules(view, RANKED)
    if not ranked:
        return []
    headings = [Heading("Module", is_figure=False), Heading("Type", is_figure=False)]
    headings += [Heading(title) for title in ("×", "MACs", "FLOPs", "share")]
    rows = [
        [
            text_cell(entry.paths or THE_MODEL),
            text_cell(entry.kind, "dim"),
            figure(format_exact(entry.count)),
            figure(format_count(entry.macs)),
            figure(format_count(entry.flops)),
            figure(format_percent(entry.share)),
        ]
        for entry in ranked
    ]
    return [heading("Most expensive modules, by their own FLOPs"), *lay_out(headings, rows, options.width)]


def expensive_ops(view: View, options: Options) -> list[Line]:
    ranked = rank_ops(view, RANKED)
    if not ranked:
        return []
    headings = [Heading("Op", is_figure=False), Heading("Shapes", is_figure=False)]
    headings += [Heading(title) for title in ("×", "MACs", "FLOPs", "share")]
    rows = [
        [
            text_cell(entry.op),
            text_cell(shapes_text(entry.input_shapes, entry.output_shapes), "dim"),
            figure(format_exact(entry.calls)),
            work(format_count(entry.macs), entry.is_counted),
            work(format_count(entry.flops), entry.is_counted),
            work(format_percent(entry.share), entry.is_counted),
        ]
        for entry in ranked
    ]
    return [heading("Most expensive ops, equal calls together"), *lay_out(headings, rows, options.width)]


def shapes_text(inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]]) -> str:
    taken = ", ".join(format_shapes([list(shape)]) for shape in inputs[:3]) + (", …" if len(inputs) > 3 else "")
    return f"{taken} → {format_shapes([list(shape) for shape in outputs])}"


def categories(view: View, options: Options) -> list[Line]:
    return _slices("Distribution by kind of op", "Kind", by_category(view), options)


def phases(view: View, options: Options) -> list[Line]:
    slices = by_phase(view)
    return _slices("Distribution by phase", "Phase", slices, options) if len(slices) > 1 else []


def _slices(title: str, first: str, slices: Sequence[Slice], options: Options) -> list[Line]:
    headings = [Heading(first, is_figure=False)]
    headings += [Heading(name) for name in ("Ops", "MACs", "share", "FLOPs", "share", "Bytes moved", "share")]
    rows = [
        [
            text_cell(entry.name),
            figure(format_exact(entry.ops)),
            work(format_count(entry.macs), entry.uncounted < entry.ops),
            work(format_percent(entry.macs_share), entry.uncounted < entry.ops),
            work(format_count(entry.flops), entry.uncounted < entry.ops),
            work(format_percent(entry.flops_share), entry.uncounted < entry.ops),
            figure(format_bytes(entry.bytes_moved)),
            figure(format_percent(entry.bytes_share)),
        ]
        for entry in slices
    ]
    return [heading(title), *lay_out(headings, rows, options.width)] if rows else []


def layers(view: View, options: Options) -> list[Line]:
    if not view.capture.has_code:
        return _layer_counts(view, options)
    kinds = layer_kinds(view)
    headings = [Heading("Type", is_figure=False)]
    headings += [Heading(title) for title in ("Count", "Params", "share", "Param bytes")]
    rows = [
        [
            text_cell(entry.kind),
            figure(format_exact(entry.count)),
            figure(format_count(entry.params)),
            figure(format_percent(entry.share)),
            figure(format_bytes(entry.param_bytes)),
        ]
        for entry in kinds[:LAYER_KINDS]
    ]
    more = len(kinds) - LAYER_KINDS
    left_out = [(Span(f"and {more} more types", "dim"),)] if more > 0 else []
    return [heading("Layers and parameters by type"), *lay_out(headings, rows, options.width), *left_out]


def _layer_counts(view: View, options: Options) -> list[Line]:
    """Kinds that names and shapes resemble: their parameters are known by module only."""
    headings = [Heading("Resembles", is_figure=False), Heading("Count")]
    counts = list(view.architecture.layer_counts.items())[:LAYER_KINDS]
    rows = [[text_cell(kind), figure(format_exact(count))] for kind, count in counts]
    return [heading("Layers by kind, from names and shapes"), *lay_out(headings, rows, options.width)] if rows else []


def covered(view: View, options: Options) -> list[Line]:
    if not view.capture.has_code:
        return []
    facts = coverage(view)
    every = format_exact(view.totals.ops)
    counts = f"{every} in all: {format_exact(facts.counted)} counted, {format_exact(facts.free)} free, "
    lines: list[Line] = [heading("Coverage of ops"), (Span(counts), _uncounted(facts.uncounted))]
    if not facts.uncounted:
        return lines
    remark = (
        f"Without a formula: {format_percent(facts.ops_share)} of the ops, which move "
        f"{format_percent(facts.bytes_share)} of the bytes; their MACs and FLOPs are missing above."
    )
    lines += wrap(remark, options.width, style="warning")
    headings = [Heading("Uncounted op", is_figure=False), Heading("Calls"), Heading("Bytes moved")]
    rows = [
        [text_cell(entry.op), figure(format_exact(entry.calls)), figure(format_bytes(entry.bytes_moved))]
        for entry in facts.uncounted_ops
    ]
    return [*lines, *lay_out(headings, rows, options.width)]


def _uncounted(count: int) -> Span:
    return Span(f"{format_exact(count)} uncounted", "warning" if count else "")


def notes(view: View, options: Options) -> list[Line]:
    lines = [
        line
        for text in note_texts(view)
        for line in wrap(visible(text), options.width, lead=(Span("- "),), style="warning")
    ]
    return [heading("Notes"), *lines] if lines else []


def note_texts(view: View) -> list[str]:
    """What the reader must know of the run before trusting its figures."""
    run = view.capture.run
    texts = []
    if run.mode == "real":
        texts.append(f"The model was run for real: {run.reason or 'it cannot be run on fake tensors'}")
    texts += run.warnings
    unused = unused_modules(view)
    if unused:
        names = ", ".join(f"{node.path} ({format_count(node.record.params)} params)" for node in unused[:6])
        more = f" and {len(unused) - 6} more" if len(unused) > 6 else ""
        texts.append(f"Never used in this run: {names}{more}")
    return texts
