"""The code blocks of the documentation, README and CONTRIBUTING run unchanged and print what the pages show.

`pytest tests/docs --regenerate` writes what came out into the pages, except where a page leaves lines out (`…`).
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from tests.docs.blocks import SETUP, Block, blocks_of
from tests.docs.comparing import ANYTHING, matches
from tests.docs.running import OUTPUT, PROMPT, Reader, dialogue
from torchgauge.advise import RULES, load_rules
from torchgauge.checkpoint import ARCHIVES, FILES, FOLDERS, sniff
from torchgauge.cost import REGISTRY
from torchgauge.energy import FINDERS, meters_of
from torchgauge.measure import thread_count
from torchgauge.report import FORMATS
from torchgauge.source import ensure_torchvision_imports
from torchgauge.verify import TRANSFORMATIONS, load_transformations

# A torchvision that does not match torch warns once; a reader sees that, the pages do not show it.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)
    ensure_torchvision_imports()

ROOT = Path(__file__).parents[2]
# The pages in docs/migrating have separate tests, which also check what their blocks print.
PAGES = {
    str(page.relative_to(ROOT)): page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if page.parent.name != "migrating"
}
BLOCKS = {name: blocks_of(page) for name, page in PAGES.items()}
# What a reader is shown and does not run.
SHOWN = {"", "json", "xml", "latex", "html", "dot", "markdown", "css"}
WIDTH = "80"


@pytest.fixture(autouse=True)
def readers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder, a terminal of 80 columns, short measurements; what a page registers goes away again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", WIDTH)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path / ".cache"))
    monkeypatch.setenv("TORCHGAUGE_BUDGET", "0.2")
    monkeypatch.setenv("TORCHGAUGE_VERIFY_BUDGET", "0.2")
    # On a busy machine threads that wait for each other take the whole budget for one run.
    monkeypatch.setenv("TORCHGAUGE_THREADS", "1")
    fill_registries()
    registries: list[dict[str, Any]] = [REGISTRY, FORMATS, RULES, TRANSFORMATIONS, FINDERS, FILES, ARCHIVES, FOLDERS]
    before, loaded = [dict(registry) for registry in registries], set(sys.modules)
    with thread_count(2):  # which advice is worth giving depends on it
        yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)
    for name in set(sys.modules) - loaded:
        if _is_in(sys.modules[name], tmp_path):
            del sys.modules[name]


def fill_registries() -> None:
    """Entries that are made on first use, when their modules are imported, would not be made a second time."""
    load_rules()
    load_transformations()
    sniff(ROOT / "README.md")  # loads every format
    with meters_of("cpu"):
        pass


def _is_in(module: object, folder: Path) -> bool:
    return str(getattr(module, "__file__", None)).startswith(str(folder))


def _with_blocks(*, slow: bool) -> list[str]:
    wanted = [name for name, blocks in BLOCKS.items() if any(_is_checked(block, slow=slow) for block in blocks)]
    return sorted(wanted)


def _is_checked(block: Block, *, slow: bool) -> bool:
    return block.is_run and block.kind not in SHOWN | {SETUP} and ("slow" in block.remarks) == slow


@pytest.mark.parametrize("name", _with_blocks(slow=False))
def test_a_page_does_what_it_shows(name: str, request: pytest.FixtureRequest) -> None:
    _follow(name, request, with_slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", _with_blocks(slow=True))
def test_a_page_with_long_examples_does_what_it_shows(name: str, request: pytest.FixtureRequest) -> None:
    _follow(name, request, with_slow=True)


def _follow(name: str, request: pytest.FixtureRequest, *, with_slow: bool) -> None:
    reader, found, faults = Reader(), {}, []
    for block in BLOCKS[name]:
        if not block.is_run or (block.remarks & {"slow"} and not with_slow):
            continue
        pairs = reader.follow(block, str(PAGES[name]))
        by_shape = "shape" in block.remarks
        wrong = [given for shown, given in pairs if not matches(shown, given, by_shape=by_shape)]
        faults += [f"{name}:{block.line} shows something else:\n{given}" for given in wrong]
        if wrong and not _leaves_out(block):
            found[block] = [given for _, given in pairs]
    if request.config.getoption("--regenerate"):
        _rewrite(PAGES[name], found)
    else:
        assert not faults, "\n\n".join(faults)


def _leaves_out(block: Block) -> bool:
    """Lines in the middle; a rest that is left out at the end stays left out."""
    return any(line.strip() == ANYTHING for line in block.body.splitlines()[:-1])


def _rewrite(page: Path, found: dict[Block, list[str]]) -> None:
    """By their original text: another test may have rewritten other blocks of the page since it was read."""
    text = page.read_text(encoding="utf-8")
    for block, outputs in found.items():
        body = outputs[0] if block.title == OUTPUT else _session(block, outputs)
        original = indent(block.body, block.indent)
        places = [match.start() for match in re.finditer(re.escape(original), text)]
        if not places:
            continue
        begin = min(places, key=lambda place: abs(place - block.span[0]))
        lines = "\n".join(line.rstrip() for line in body.strip("\n").splitlines()) + "\n"
        text = text[:begin] + indent(lines, block.indent) + text[begin + len(original) :]
    page.write_text(text, encoding="utf-8")


def test_a_page_can_be_rewritten_twice(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ one\n1\n```\n\n```console\n$ two\n2\n```\n", encoding="utf-8")
    first, second = blocks_of(page)
    _rewrite(page, {first: ["uno\ndos\ntres\n"]})
    _rewrite(page, {second: ["due\n"]})
    assert page.read_text(encoding="utf-8") == (
        "```console\n$ one\nuno\ndos\ntres\n```\n\n```console\n$ two\ndue\n```\n"
    )


def _session(block: Block, outputs: list[str]) -> str:
    pairs = zip(dialogue(block.body), outputs, strict=True)
    return "".join(f"{PROMPT}{command}\n{_as_long(shown, output)}" for (command, shown), output in pairs)


def _as_long(shown: str, output: str) -> str:
    lines = shown.splitlines()
    if not lines or lines[-1].strip() != ANYTHING:
        return output
    return "\n".join([*output.splitlines()[: len(lines) - 1], ANYTHING, ""])


def test_every_block_is_of_a_known_kind() -> None:
    """A typing error in a fence must not keep a block from being run."""
    run = {"python", "bash", "console", "text", "toml", "yaml", "ini", SETUP} | SHOWN
    odd = [f"{name}:{block.line} {block.kind}" for name, blocks in BLOCKS.items() for block in blocks
           if block.kind not in run]  # fmt: skip
    assert not odd


def test_a_block_that_is_not_run_says_why() -> None:
    silent = [f"{name}:{block.line}" for name, blocks in BLOCKS.items() for block in blocks
              if not block.is_run and len(block.remarks) < 2]  # fmt: skip
    assert not silent


@pytest.mark.parametrize(
    ("shown", "given", "by_shape", "expected"),
    [
        ("a\n…\nd\n", "a\nb\nc\nd\n", False, True),
        ("a\n…\nd\n", "a\nd\n", False, True),
        ("a\n…\n", "b\na\n", False, False),
        ("took … s\n", "took 3.1 s\n", False, True),
        ("median 3.1 ms  12 runs\n", "median 920 µs 7 runs\n", False, False),
        ("median 3.1 ms  12 runs\n", "median 920 µs 7 runs\n", True, True),
        ("median 3.1 ms\n", "mean 3.1 ms\n", True, False),
    ],
)
def test_page_outputs_are_compared_exactly_or_by_shape(shown: str, given: str, by_shape: bool, expected: bool) -> None:
    assert matches(shown, given, by_shape=by_shape) == expected
