"""Shown with `--ops`: the most expensive modules and ops, distributions, coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torchgauge.facts import UNCOUNTED, Node, OpRecord, Sums, TensorSpec, View, enclosing_paths
from torchgauge.registry import grouped
from torchgauge.report.model import (
    Block,
    Cell,
    Cells,
    Section,
    Text,
    Topic,
    figures,
    more,
    names,
    table,
    table_section,
    texts,
)
from torchgauge.report.options import Options, format_shapes
from torchgauge.report.ranking import BY_FLOPS, THE_MODEL, TopModules, TopOps, share_of, top_modules, top_ops
from torchgauge.units import format_bytes, format_count, format_exact, format_percent

# Rows of a ranking on a screen, and in a document.
RANKED_ROWS = 8, 20
MAX_LAYER_KINDS = 12
# The work of an op without a formula is unknown, not zero.
UNKNOWN = "?"


def sections(view: View, options: Options) -> Iterator[Section]:
    if not options.ops and not options.detail:
        return
    yield from _rankings(view, options.rows(*RANKED_ROWS))
    slices = by_category(view)
    if slices:
        yield _distribution("Distribution by kind of op", "Kind", slices)
    if len(slices := by_phase(view)) > 1:
        yield _distribution("Distribution by phase", "Phase", slices)
    if view.capture.has_code:
        kinds = layer_kinds(view)
        headings = (*names("Type"), *figures("Count", "Params", "share", "Param bytes"))
        rows = []
        for entry in kinds[:MAX_LAYER_KINDS]:
            params, share = format_count(entry.params), format_percent(entry.share)
            rows.append((entry.kind, format_exact(entry.count), params, share, format_bytes(entry.param_bytes)))
        by_type = table(headings, rows, more(len(kinds) - MAX_LAYER_KINDS, "types"))
        yield Section("Layers and parameters by type", (by_type,), Topic.LAYERS)
        yield coverage_section(view)
    else:
        # Kinds that names and shapes resemble: their parameters are known by module only.
        counts = [(kind, format_exact(count)) for kind, count in view.architecture.layer_counts.items()]
        title, headings = "Layers by kind, from names and shapes", (*names("Resembles"), *figures("Count"))
        yield from table_section(title, headings, counts[:MAX_LAYER_KINDS], topic=Topic.LAYERS)


def _rankings(view: View, limit: int) -> Iterator[Section]:
    work = figures("×", "MACs", "FLOPs", "share")
    modules: list[Cells] = [
        (entry.paths or THE_MODEL, entry.kind, format_exact(entry.count), *_work(entry))
        for entry in top_modules(view, BY_FLOPS, limit)
    ]
    title = "Most expensive modules, by their own FLOPs"
    yield from table_section(title, (*names("Module", "Type"), *work), modules, topic=Topic.OPS)
    ops: list[Cells] = [
        (
            entry.op,
            shapes_text(entry.input_shapes, entry.output_shapes),
            format_exact(entry.calls),
            *_work(entry, entry.is_counted),
        )
        for entry in top_ops(view, BY_FLOPS, limit)
    ]
    title = "Most expensive ops, equal calls together"
    yield from table_section(title, (*names("Op"), *texts("Shapes"), *work), ops, topic=Topic.OPS)


def _work(entry: TopModules | TopOps, is_known: bool = True) -> list[Cell]:
    return _known(is_known, format_count(entry.macs), format_count(entry.flops), format_percent(entry.share))


def _known(is_known: bool, *values: str) -> list[Cell]:
    return [Cell(value if is_known else UNKNOWN, is_warning=not is_known) for value in values]


def _distribution(title: str, first: str, slices: Sequence[Slice]) -> Section:
    headings = (*texts(first), *figures("Modules", "Ops", "MACs", "share", "FLOPs", "share", "Bytes moved", "share"))
    rows: list[Cells] = []
    for entry in slices:
        macs = format_count(entry.macs), format_percent(entry.macs_share)
        flops = format_count(entry.flops), format_percent(entry.flops_share)
        work = _known(entry.uncounted < entry.ops, *macs, *flops)
        moved = format_bytes(entry.bytes_moved), format_percent(entry.bytes_share)
        rows.append((entry.name, format_exact(entry.modules), format_exact(entry.ops), *work, *moved))
    return Section(title, (table(headings, rows),), Topic.OPS)


def coverage_section(view: View) -> Section:
    facts = coverage(view)
    counts = (
        f"{format_exact(view.totals.ops)} in all: {format_exact(facts.counted)} counted, {format_exact(facts.free)} "
        f"free, {format_exact(facts.uncounted)} uncounted"
    )
    blocks: list[Block] = [Text(counts)]
    if facts.uncounted:
        rows = [(row.op, format_exact(row.calls), format_bytes(row.bytes_moved)) for row in facts.uncounted_ops]
        headings = (*names("Uncounted op"), *figures("Calls", "Bytes moved"))
        blocks += [Text(uncounted_text(facts), is_warning=True), table(headings, rows)]
    return Section("Coverage of ops", tuple(blocks), Topic.OPS)


def uncounted_text(facts: Coverage) -> str:
    return (
        f"Without a formula: {format_percent(facts.ops_share)} of the ops, which move "
        f"{format_percent(facts.bytes_share)} of the bytes; their MACs and FLOPs are missing."
    )


def shapes_text(inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]]) -> str:
    taken = ", ".join(format_shapes([list(shape)]) for shape in inputs[:3]) + (", …" if len(inputs) > 3 else "")
    return f"{taken} → {format_shapes([list(shape) for shape in outputs])}"


@dataclass(frozen=True, slots=True)
class Slice:
    """The ops of one category or phase, with their shares of the whole; `uncounted` of them have no known work.
    `modules` run such ops themselves."""

    name: str
    modules: int
    ops: int
    uncounted: int
    macs: int
    flops: int
    bytes_moved: int
    macs_share: float
    flops_share: float
    bytes_share: float


def by_category(view: View) -> list[Slice]:
    return sorted(_slices(view, lambda op: op.category), key=lambda s: (s.flops, s.bytes_moved, s.ops), reverse=True)


def by_phase(view: View) -> list[Slice]:
    """One slice per phase, in the order they ran."""
    return _slices(view, lambda op: op.phase)


def _slices(view: View, key: Callable[[OpRecord], str]) -> list[Slice]:
    groups: dict[str, Sums] = {}
    for op in view.capture.ops:
        groups.setdefault(key(op), Sums()).count(op.signature)
    modules = Counter(name for name, _ in {(key(op), op.module) for op in view.capture.ops})
    totals, slices = view.totals, []
    for name, sums in groups.items():
        slices.append(
            Slice(
                name=name,
                modules=modules[name],
                ops=sums.ops,
                uncounted=sums.uncounted_ops,
                macs=sums.macs,
                flops=sums.flops,
                bytes_moved=sums.bytes_moved,
                macs_share=share_of(sums.macs, totals.macs),
                flops_share=share_of(sums.flops, totals.flops),
                bytes_share=share_of(sums.bytes_moved, totals.bytes_read + totals.bytes_written),
            )
        )
    return slices


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Modules of one type that are layers: without children, or with their own parameters."""

    kind: str
    count: int
    params: int
    param_bytes: int
    share: float


def layer_kinds(view: View) -> list[LayerKind]:
    """Sorted by parameters, then by count. Tied parameters count once, in the module that has their first name."""
    owned = grouped((param.module, param.spec) for param in view.capture.params if not param.is_buffer)
    counts: Counter[str] = Counter()
    specs: dict[str, list[TensorSpec]] = {}
    for node in view.tree.walk():
        if not node.children or node.path in owned:
            counts[node.record.type] += 1
            specs.setdefault(node.record.type, []).extend(owned.get(node.path, []))
    layers = []
    for kind, count in counts.items():
        params, nbytes = sum(spec.numel for spec in specs[kind]), sum(spec.nbytes for spec in specs[kind])
        layers.append(LayerKind(kind, count, params, nbytes, share_of(params, view.totals.params)))
    return sorted(layers, key=lambda layer: (layer.params, layer.count), reverse=True)


@dataclass(frozen=True, slots=True)
class UncountedOp:
    op: str
    calls: int
    bytes_moved: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """Ops by status; the shares are those of the uncounted ones."""

    counted: int
    free: int
    uncounted: int
    uncounted_ops: tuple[UncountedOp, ...]
    ops_share: float
    bytes_share: float


def coverage(view: View) -> Coverage:
    """How far the figures can be trusted: which ops were counted, and which were not."""
    statuses = Counter(op.status for op in view.capture.ops)
    calls: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for op in view.capture.ops:
        if op.status == UNCOUNTED:
            calls[op.op] += 1
            moved[op.op] += op.cost.bytes_moved
    totals = view.totals
    return Coverage(
        counted=statuses["counted"],
        free=statuses["free"],
        uncounted=statuses[UNCOUNTED],
        uncounted_ops=tuple(UncountedOp(op, count, moved[op]) for op, count in calls.most_common()),
        ops_share=share_of(statuses[UNCOUNTED], totals.ops),
        bytes_share=share_of(sum(moved.values()), totals.bytes_read + totals.bytes_written),
    )


def unused_modules(view: View) -> list[Node]:
    """The topmost modules with parameters that took no part: never called, and no op used their parameters."""
    if not view.capture.ops:
        return []
    names = {name for op in view.capture.ops for name in op.weights}
    # A tied parameter is used under any of its names.
    names |= {alias for param in view.capture.params if param.name in names for alias in param.aliases}
    # A list may hold only modules that have their first name elsewhere.
    used = {path for name in names for path in enclosing_paths(name)}
    idle: set[str] = set()
    for node in reversed(list(view.tree.walk())):
        took_part = node.record.calls or node.own.ops or node.path in used
        if not took_part and all(child.path in idle for child in node.children):
            idle.add(node.path)
    found, waiting = [], [view.tree]
    while waiting:
        node = waiting.pop()
        if node.record.params and node.path in idle:
            found.append(node)
        elif node.record.params:
            # Which experts run is an accident of the values: equal ones beside them are in use.
            busy = {child.record.type for child in node.children if child.path not in idle} if view.mixtures else set()
            waiting.extend(
                child for child in reversed(node.children) if child.record.type not in busy or child.path not in idle
            )
    return found
