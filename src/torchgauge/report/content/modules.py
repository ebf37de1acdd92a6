"""The module tree as a table: sorted, cut at a depth, with guides that show which module belongs to which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torchgauge.facts import Capture, Row, View
from torchgauge.facts.figures import MODULES, keys_known
from torchgauge.facts.measurements import TIMED
from torchgauge.report.folding import FoldedBlock, fold
from torchgauge.report.layout import Heading
from torchgauge.report.model import Cell, Fact, Facts, Section, Table, Topic
from torchgauge.report.options import COLUMNS, DEFAULT_COLUMNS, Detail, Options, columns_of
from torchgauge.units import format_exact, format_percent

# As deep as leaves room on a screen for the totals and the advice: enough for the stages of a CNN, the blocks of a
# transformer and their halves.
PAGE_LINES = 25
# In the comprehensive report the tree is shown whole, equal blocks once.
WHOLE_DEPTH = 100
FOLDED = "×n: n equal blocks in a row, with the sum of their figures"
ON_HOST = "Time includes submodules, Self does not; measured on the CPU in separate runs. share: of the median run"
ON_DEVICE = "Time includes submodules, Self does not; device time of profiled runs. share: of the median run"
# Below this width of the terminal a default column is left out: the names need the room.
MIN_WIDTHS = {"output_shapes": 72, "self_time_s": 72, "flops": 56, "time_share": 48}
# More than the cost of timing the modules and the time outside the model's call.
MAX_TIME_DRIFT = 0.15


def sections(view: View, options: Options) -> Iterator[Section]:
    if options.tensors:
        return
    if options.detail is Detail.FULL:
        capture, totals = view.capture, view.totals
        facts: list[Fact] = [("Modules", format_exact(len(capture.modules)), "")]
        if capture.has_code:
            facts.append(
                ("Nodes", format_exact(totals.ops), f"op calls, {format_exact(totals.uncounted_ops)} uncounted")
            )
        buffers = sum(param.is_buffer for param in capture.params)
        facts.append(("Parameter tensors", format_exact(len(capture.params) - buffers), ""))
        yield Section("Size", (Facts([*facts, ("Buffers", format_exact(buffers), "")]),), Topic.MODULES)
        options = options if options.depth is not None else replace(options, depth=WHOLE_DEPTH)
    yield Section("Modules", (module_table(view, options),), Topic.MODULES, page_part="modules", name="modules")


def module_table(view: View, options: Options) -> Table:
    columns = columns_of(view, options.columns)
    min_widths = MIN_WIDTHS if options.columns == DEFAULT_COLUMNS else {}
    headings = [Heading("Module", is_figure=False)]
    headings += [Heading(COLUMNS[key].title, COLUMNS[key].is_figure, min_widths.get(key, 0)) for key in columns]
    lines = outline(view, options)
    rows = []
    for line in lines:
        name = Cell(name=line.kind or "(root)")
        if line.name:
            name = Cell(f" {line.kind}{line.remark}", line.name, len(line.guide) // 3, line.guide, line.count)
        rows.append((name, *(Cell(COLUMNS[key].form(line.row[key])) for key in columns)))
    notes = [FOLDED] if any(line.count > 1 for line in lines) else []
    if view.measurements is not None and set(columns) & set(keys_known(MODULES, *TIMED)):
        on_device = (view.measurements.get("profile") or {}).get("device_s") is not None
        notes.append(ON_DEVICE if on_device else ON_HOST)
        # The modules of one run take as long as the run, unless the load of the machine changed.
        share = None if on_device else view.modules[0]["time_share"]
        if share is not None and abs(share - 1) > MAX_TIME_DRIFT:
            took = f"Those runs took {format_percent(share)} of the median run: machine load differed"
            notes.append(f"{took}; compare the shares only with each other")
    return Table("", tuple(headings), tuple(rows), tuple(notes))


@dataclass(frozen=True, slots=True)
class OutlineLine:
    """`remark` says what the figures do not: other names of the module, more than one call, tied weights."""

    guide: str
    name: str
    count: int
    kind: str
    remark: str
    row: Row


def outline(view: View, options: Options) -> list[OutlineLine]:
    root = fold(view)
    if options.sort:
        root = sort_blocks(root, options.sort)
    deepest = fitting_depth(root) if options.depth is None else options.depth
    tied, lines = tied_modules(view.capture), []
    waiting = [(root, 0, "", "")]
    while waiting:
        block, depth, guide, below = waiting.pop()
        record = block.members[0].record
        remarks = [f"also {record.aliases[0]}" + ("…" if len(record.aliases) > 1 else "")] if record.aliases else []
        remarks += [f"tied to {tied[record.path] or 'the model itself'}"] if record.path in tied else []
        remarks += [f"{record.calls} calls"] if record.calls > 1 else []
        remark = f" ({', '.join(remarks)})" if remarks else ""
        lines.append(OutlineLine(guide, block.name, block.count, record.type, remark, block.row))
        if depth < deepest:
            inside = [(child, depth + 1, f"{below}├─ ", f"{below}│  ") for child in block.children[:-1]]
            inside += [(child, depth + 1, f"{below}└─ ", f"{below}   ") for child in block.children[-1:]]
            waiting.extend(reversed(inside))
    return lines


def tied_modules(capture: Capture) -> dict[str, str]:
    """The path of each module that holds another module's parameter -> the path of the module that has it first."""
    return {
        alias.rpartition(".")[0]: param.module
        for param in capture.params
        for alias in param.aliases
        if alias.rpartition(".")[0] != param.module
    }


def sort_blocks(block: FoldedBlock, key: str) -> FoldedBlock:
    """The same tree with siblings ordered by a column: figures from the largest, text from A, unknown last."""

    def rank(child: FoldedBlock) -> tuple[bool, float, str]:
        value: Any = child.row[key]
        return (False, -value, "") if isinstance(value, int | float) else (value is None, 0.0, str(value))

    done: dict[int, FoldedBlock] = {}
    for each in reversed(list(block.walk())):
        children = sorted((done[id(child)] for child in each.children), key=rank)
        done[id(each)] = replace(each, children=tuple(children))
    return done[id(block)]


def fitting_depth(block: FoldedBlock, limit: int = PAGE_LINES) -> int:
    """The largest depth whose lines fit the page, and at least 1."""
    level, lines, depth = list(block.children), 1, 0
    while level and (depth < 1 or lines + len(level) <= limit):
        lines += len(level)
        depth += 1
        level = [child for node in level for child in node.children]
    return max(depth, 1)
