"""The lines of the module tree: sorted, cut at a depth, with the guides that show who belongs to whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchgauge.facts import Capture, ModuleRecord, Row, View
from torchgauge.report.folding import Block, fold
from torchgauge.report.options import Options

# As deep as leaves room on a screen for the totals and the advice: enough for the stages of a CNN, the blocks of a
# transformer and their halves.
PAGE_LINES = 25


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
    block = fold(view)
    if options.sort:
        block = sort_blocks(block, options.sort)
    depth = fitting_depth(block) if options.depth is None else options.depth
    return list(_lines(block, depth, tied_modules(view.capture)))


def tied_modules(capture: Capture) -> dict[str, str]:
    """By the path of a module that holds a parameter of another one, the path of the one that has it first."""
    return {
        alias.rpartition(".")[0]: param.module
        for param in capture.params
        for alias in param.aliases
        if alias.rpartition(".")[0] != param.module
    }


def sort_blocks(block: Block, key: str) -> Block:
    """The same tree with siblings ordered by a column: figures from the largest, text from A."""
    done: dict[int, Block] = {}
    for each in reversed(list(block.walk())):
        children = sorted((done[id(child)] for child in each.children), key=lambda child: _rank(child.row[key]))
        done[id(each)] = replace(each, children=tuple(children))
    return done[id(block)]


def fitting_depth(block: Block, limit: int = PAGE_LINES) -> int:
    """The largest depth whose lines fit the page, and at least 1."""
    level, lines, depth = list(block.children), 1, 0
    while level and (depth < 1 or lines + len(level) <= limit):
        lines += len(level)
        depth += 1
        level = [child for node in level for child in node.children]
    return max(depth, 1)


def _rank(value: Any) -> tuple[bool, float, str]:
    if isinstance(value, int | float):
        return (False, -value, "")
    return (value is None, 0.0, str(value))


def _lines(root: Block, deepest: int, tied: Mapping[str, str]) -> Iterator[OutlineLine]:
    waiting = [(root, 0, "", "")]
    while waiting:
        block, depth, guide, below = waiting.pop()
        record = block.members[0].record
        remark = _remark(record, tied.get(record.path))
        yield OutlineLine(guide, block.name, block.count, record.type, remark, block.row)
        if depth < deepest:
            inside = [(child, depth + 1, f"{below}├─ ", f"{below}│  ") for child in block.children[:-1]]
            inside += [(child, depth + 1, f"{below}└─ ", f"{below}   ") for child in block.children[-1:]]
            waiting.extend(reversed(inside))


def _remark(record: ModuleRecord, tied_to: str | None) -> str:
    calls = [f"{record.calls} calls"] if record.calls > 1 else []
    names = [f"also {record.aliases[0]}" + ("…" if len(record.aliases) > 1 else "")] if record.aliases else []
    tied = [] if tied_to is None else [f"tied to {tied_to or 'the model itself'}"]
    remarks = [*names, *tied, *calls]
    return f" ({', '.join(remarks)})" if remarks else ""
