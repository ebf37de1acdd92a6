"""With `--ops`: the most expensive modules and ops, distributions, coverage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchgauge.facts import View
from torchgauge.report.coverage import coverage
from torchgauge.report.distribution import Slice, by_category, by_phase, layer_kinds
from torchgauge.report.layout import Heading
from torchgauge.report.model import Block, Cell, Section, Table, Text
from torchgauge.report.options import Options
from torchgauge.report.ranking import BY_FLOPS, THE_MODEL, top_modules, top_ops
from torchgauge.report.sections import RANKED, shapes_text
from torchgauge.units import format_bytes, format_count, format_exact, format_percent

LAYER_KINDS = 12
# What has no formula is unknown, not zero.
UNKNOWN = "?"


def sections(view: View, options: Options) -> Iterator[Section]:
    if options.ops:
        for make in (expensive_modules, expensive_ops, categories, phases, layers, covered):
            section = make(view)
            if section is not None:
                yield section


def expensive_modules(view: View) -> Section | None:
    rows = tuple(
        (
            Cell(name=entry.paths or THE_MODEL),
            Cell(name=entry.kind),
            Cell(format_exact(entry.count)),
            Cell(format_count(entry.macs)),
            Cell(format_count(entry.flops)),
            Cell(format_percent(entry.share)),
        )
        for entry in top_modules(view, BY_FLOPS, RANKED)
    )
    headings = (*_texts("Module", "Type"), *_figures("×", "MACs", "FLOPs", "share"))
    return _tabled("Most expensive modules, by their own FLOPs", headings, rows)


def expensive_ops(view: View) -> Section | None:
    return _tabled("Most expensive ops, equal calls together", *op_rows(view, RANKED))


def op_rows(view: View, limit: int) -> tuple[tuple[Heading, ...], tuple[tuple[Cell, ...], ...]]:
    headings = (*_texts("Op", "Shapes"), *_figures("×", "MACs", "FLOPs", "share"))
    rows = tuple(
        (
            Cell(name=entry.op),
            Cell(shapes_text(entry.input_shapes, entry.output_shapes)),
            Cell(format_exact(entry.calls)),
            _work(format_count(entry.macs), entry.is_counted),
            _work(format_count(entry.flops), entry.is_counted),
            _work(format_percent(entry.share), entry.is_counted),
        )
        for entry in top_ops(view, BY_FLOPS, limit)
    )
    return headings, rows


def categories(view: View) -> Section | None:
    return _slices("Distribution by kind of op", "Kind", by_category(view))


def phases(view: View) -> Section | None:
    slices = by_phase(view)
    return _slices("Distribution by phase", "Phase", slices) if len(slices) > 1 else None


def _slices(title: str, first: str, slices: Sequence[Slice]) -> Section | None:
    headings = (*_texts(first), *_figures("Ops", "MACs", "share", "FLOPs", "share", "Bytes moved", "share"))
    rows = tuple(
        (
            Cell(entry.name),
            Cell(format_exact(entry.ops)),
            _work(format_count(entry.macs), entry.uncounted < entry.ops),
            _work(format_percent(entry.macs_share), entry.uncounted < entry.ops),
            _work(format_count(entry.flops), entry.uncounted < entry.ops),
            _work(format_percent(entry.flops_share), entry.uncounted < entry.ops),
            Cell(format_bytes(entry.bytes_moved)),
            Cell(format_percent(entry.bytes_share)),
        )
        for entry in slices
    )
    return _tabled(title, headings, rows)


def layers(view: View) -> Section | None:
    if not view.capture.has_code:
        # Kinds that names and shapes resemble: their parameters are known by module only.
        counts = list(view.architecture.layer_counts.items())[:LAYER_KINDS]
        resembled = tuple((Cell(name=kind), Cell(format_exact(count))) for kind, count in counts)
        return _tabled("Layers by kind, from names and shapes", (*_texts("Resembles"), *_figures("Count")), resembled)
    kinds = layer_kinds(view)
    rows = tuple(
        (
            Cell(name=entry.kind),
            Cell(format_exact(entry.count)),
            Cell(format_count(entry.params)),
            Cell(format_percent(entry.share)),
            Cell(format_bytes(entry.param_bytes)),
        )
        for entry in kinds[:LAYER_KINDS]
    )
    more = len(kinds) - LAYER_KINDS
    notes = (f"and {more} more types",) if more > 0 else ()
    headings = (*_texts("Type"), *_figures("Count", "Params", "share", "Param bytes"))
    return Section("Layers and parameters by type", (Table("", headings, rows, notes),))


def covered(view: View) -> Section | None:
    if not view.capture.has_code:
        return None
    facts = coverage(view)
    counts = (
        f"{format_exact(view.totals.ops)} in all: {format_exact(facts.counted)} counted, {format_exact(facts.free)} "
        f"free, {format_exact(facts.uncounted)} uncounted"
    )
    blocks: list[Block] = [Text(counts)]
    if facts.uncounted:
        remark = (
            f"Without a formula: {format_percent(facts.ops_share)} of the ops, which move "
            f"{format_percent(facts.bytes_share)} of the bytes; their MACs and FLOPs are missing above."
        )
        rows = tuple(
            (Cell(name=entry.op), Cell(format_exact(entry.calls)), Cell(format_bytes(entry.bytes_moved)))
            for entry in facts.uncounted_ops
        )
        headings = (*_texts("Uncounted op"), *_figures("Calls", "Bytes moved"))
        blocks += [Text(remark, is_warning=True), Table("", headings, rows)]
    return Section("Coverage of ops", tuple(blocks))


def _tabled(title: str, headings: tuple[Heading, ...], rows: tuple[tuple[Cell, ...], ...]) -> Section | None:
    return Section(title, (Table("", headings, rows),)) if rows else None


def _texts(*titles: str) -> tuple[Heading, ...]:
    return tuple(Heading(title, is_figure=False) for title in titles)


def _figures(*titles: str) -> tuple[Heading, ...]:
    return tuple(Heading(title) for title in titles)


def _work(text: str, is_known: bool) -> Cell:
    return Cell(text if is_known else UNKNOWN)
