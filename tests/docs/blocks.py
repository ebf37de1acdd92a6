"""The fenced blocks of a Markdown page, and what the page says about how to check them.

A comment in front of a block is for the tests: `<!-- test: shape -->` (figures differ from run to run),
`<!-- test: slow -->`, `<!-- test: status=1 -->`, `<!-- test: not run, why -->`. Code in `<!-- setup … -->` makes what
the page takes for granted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

_FENCE = re.compile(
    r"<!--\s*setup\n(?P<setup>.*?)-->"
    r"|<!--\s*test:\s*(?P<remark>.*?)\s*-->"
    r"|^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```[ ]*$",
    re.DOTALL | re.MULTILINE,
)
_TITLE = re.compile(r'title="([^"]*)"')

SETUP = "setup"


@dataclass(frozen=True, slots=True)
class Block:
    """`line` is the one the body begins at; `span` is the body's place in the page."""

    kind: str
    title: str
    body: str
    line: int
    span: tuple[int, int]
    indent: str = ""
    remarks: frozenset[str] = field(default_factory=frozenset)

    @property
    def status(self) -> int:
        given = [remark.partition("=")[2] for remark in self.remarks if remark.startswith("status=")]
        return int(given[0]) if given else 0

    @property
    def is_run(self) -> bool:
        return "not run" not in self.remarks


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    remarks: frozenset[str] = frozenset()
    for match in _FENCE.finditer(text):
        if match["remark"] is not None:
            remarks = frozenset(part.strip() for part in match["remark"].split(","))
            continue
        found.append(_block(match, text, remarks))
        remarks = frozenset()
    return found


def _block(match: re.Match[str], text: str, remarks: frozenset[str]) -> Block:
    group = "body" if match["setup"] is None else "setup"
    begin, end = match.span(group)
    info = match["info"] or ""
    title = _TITLE.search(info)
    return Block(
        kind=SETUP if group == "setup" else info.split(maxsplit=1)[0] if info.strip() else "",
        title=title[1] if title else "",
        body=dedent(text[begin:end]),
        line=text.count("\n", 0, begin) + 1,
        span=(begin, end),
        indent=match["indent"] or "",
        remarks=remarks,
    )
