"""How `torch.compile` runs the model: graphs, what breaks them, kernels and the bytes they move."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from torchgauge.facts import Compiled, CompiledKernel, View
from torchgauge.report.model import (
    Block,
    Cell,
    Cells,
    Fact,
    Facts,
    Item,
    Listing,
    Section,
    Table,
    Topic,
    figures,
    more,
    notes,
    table,
    texts,
)
from torchgauge.report.options import Options
from torchgauge.units import format_bytes, format_exact, format_names, format_percent, format_seconds

_MAX_OPS, _MAX_MODULES = 6, 3
_ROWS_ON_SCREEN, _ROWS_IN_DOCUMENT = 8, 50


@dataclass(slots=True)
class EqualKernels:
    """Launches of kernels with one name and the same ops and bytes."""

    first: CompiledKernel
    count: int = 0
    bytes: int = 0
    time_s: float | None = None
    modules: dict[str, float] = field(default_factory=dict)

    def add(self, kernel: CompiledKernel) -> None:
        self.count += 1
        self.bytes += kernel.bytes_read + kernel.bytes_written
        if kernel.time_s is not None:
            self.time_s = (self.time_s or 0.0) + kernel.time_s
        for path, share in kernel.modules.items():
            self.modules[path] = self.modules.get(path, 0.0) + share


def sections(view: View, options: Options) -> Iterator[Section]:
    compiled = view.capture.compiled
    if compiled is None:
        return
    blocks: list[Block] = [Facts(_facts(compiled, view.totals["bytes_read"] + view.totals["bytes_written"]))]
    shown = options.rows(_ROWS_ON_SCREEN, _ROWS_IN_DOCUMENT)
    if compiled.breaks:
        items = []
        for one in compiled.breaks[:shown]:
            # The sentence in which Dynamo explains the break.
            found = re.search(r"^\s*Explanation: (.*)", one.detail, re.MULTILINE)
            explained = [("", found[1].strip())] if found else []
            items.append(Item(f": {one.reason}", explained, name=one.source or "?"))
        blocks += [Listing(items), *notes(more(len(compiled.breaks) - shown), is_remark=True)]
    if compiled.kernels:
        blocks.append(_kernels(compiled, shown))
    if compiled.recompilations:
        again = [
            Item(f"{f'at {one.point}, ' if one.point else ''}{one.reason}", name=f"{one.source or '?'}: ")
            for one in compiled.recompilations[:shown]
        ]
        blocks += [Listing(again), *notes(more(len(compiled.recompilations) - shown), is_remark=True)]
    blocks += notes(compiled.notes, is_remark=True)
    yield Section("Compiled", tuple(blocks), Topic.TIME, name="compiled")


def _facts(compiled: Compiled, eager: int) -> list[Fact]:
    moved = compiled.bytes_read + compiled.bytes_written
    generated = sum(kernel.kind == "generated" for kernel in compiled.kernels)
    where = f"{compiled.backend} on {compiled.device}, {'as measured' if compiled.is_run else 'not run'}"
    calls = sum(graph.calls for graph in compiled.graphs)
    facts: list[Fact] = [
        ("Backend", where, ""),
        ("Graphs", format_exact(len(compiled.graphs)), f"called {calls} times" if calls > len(compiled.graphs) else ""),
        ("Graph breaks", format_exact(len(compiled.breaks)), ""),
    ]
    if compiled.kernels:
        kinds = f"{format_exact(generated)} generated, {format_exact(len(compiled.kernels) - generated)} of libraries"
        facts.append(("Kernels", format_exact(len(compiled.kernels)), kinds))
        change = f"eager: {format_bytes(eager)}"
        if eager:
            change += f"; {format_percent(abs(1 - moved / eager))} {'less' if moved <= eager else 'more'}"
        facts.append(("Bytes moved", format_bytes(moved), change))
    if compiled.profiled_s:
        share = format_percent((compiled.joined_s or 0.0) / compiled.profiled_s)
        facts.append(("Time on device", format_seconds(compiled.profiled_s), f"{share} in these kernels"))
    if compiled.recompilations:
        facts.append(("Recompilations", format_exact(len(compiled.recompilations)), ""))
    return facts


def _kernels(compiled: Compiled, shown: int) -> Table:
    groups: dict[tuple[object, ...], EqualKernels] = {}
    for kernel in compiled.kernels:
        key = (kernel.name, kernel.ops, kernel.bytes_read, kernel.bytes_written)
        groups.setdefault(key, EqualKernels(kernel)).add(kernel)
    is_timed = any(group.time_s is not None for group in groups.values())
    ranked = sorted(groups.values(), key=lambda group: -(group.time_s or 0.0) if is_timed else -group.bytes)
    rows: list[Cells] = []
    for group in ranked[:shown]:
        ops = [op.removeprefix("aten::") for op in group.first.ops]
        fused = format_names(ops, _MAX_OPS)
        paths = sorted(group.modules, key=lambda path: -group.modules[path])
        served = ", ".join(path or "(root)" for path in paths[:_MAX_MODULES])
        others = f" and {len(paths) - _MAX_MODULES} more" if len(paths) > _MAX_MODULES else ""
        time = [format_seconds(group.time_s)] if is_timed else []
        launched, modules = Cell(name=group.first.name, times=group.count), Cell(others, name=served)
        rows.append((launched, fused, modules, *time, format_bytes(group.bytes)))
    headings = (*texts("Kernel", "Ops", "Modules"), *figures(*(["Time"] if is_timed else []), "Bytes"))
    return table(headings, rows, more(len(ranked) - shown))
