"""The HTML page in real Chromium: its size, the time until it shows something, and the time to sort its tables.

The last of the models is really measured, op by op: that takes minutes.

    python benchmarks/page.py [--turns N] [-o results.json]

Needs playwright and Debian's chromium. Prints Markdown tables and a verdict on every limit; the exit status is 1 where
one is broken. A time ends when the browser has painted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import tables
from judging import Verdict
from playwright.sync_api import Browser, Page, sync_playwright
from torch import Tensor, nn

import torchgauge as tg
from torchgauge.analysis import Analysis

FIRST_PAINT_S = 2.0
SORT_S = 0.3
ORDINARY_BYTES = 6 * 10**6
LARGE_BYTES = 12 * 10**6
LARGE_OPS = 20_000
TABLES = ("modules", "ops", "weights")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")

# The first paint after the heading of the overview is there: the frame after the one it was added in.
WATCH = """
new MutationObserver((_, observer) => {
  if (!document.querySelector("h1")) return;
  observer.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => { window.paintedAt = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""
PAINTED = (
    "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(window.paintedAt))))"
)
SORT = """([section, place]) => new Promise((done) => {
  const button = document.querySelectorAll(`#${section} [role=columnheader] button`)[place];
  const start = performance.now();
  button.click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
})"""


class Blocks(nn.Module):
    """Four ops and four modules a block."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU()) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@dataclass(frozen=True, slots=True)
class Outcome:
    subject: str
    ops: int
    modules: int
    write_s: float
    page_bytes: int
    paint_s: float
    sort_s: float
    slowest: str


SUBJECTS: dict[str, Callable[[], Analysis]] = {
    "resnet50": lambda: tg.analyze("torchvision:resnet50", progress=False),
    "gpt2": lambda: tg.analyze("hf:GPT2LMHeadModel", progress=False),
    f"{LARGE_OPS} ops": lambda: tg.analyze(Blocks(LARGE_OPS // 4), input_size=(1, 8), progress=False),
    # Every section: a time and an energy for each op and module, and the values of 20,000 tensors.
    f"{LARGE_OPS} ops, measured": lambda: tg.analyze(
        Blocks(LARGE_OPS // 4), input_size=(1, 8), inference=True, profile=True, weights=True, progress=False
    ),
}


def main() -> int:
    options = _parse()
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_browser(), args=list(ARGUMENTS))
        outcomes = [measure(name, Path(folder), browser, options.turns) for name in SUBJECTS]
        browser.close()
    verdicts = judged(outcomes)
    print(f"\n## pages\n\n{page_table(outcomes)}\n\n## verdict\n\n{tables.verdicts(verdicts)}")
    if options.output:
        document = {"pages": [asdict(o) for o in outcomes], "verdicts": [asdict(v) for v in verdicts]}
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def _browser() -> str:
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        sys.exit(f"no browser: none of {', '.join(BROWSERS)} is installed")
    return found


def measure(name: str, folder: Path, browser: Browser, turns: int) -> Outcome:
    analysis = SUBJECTS[name]()
    path = folder / f"{name.replace(' ', '-')}.html"
    start = perf_counter()
    analysis.save(path)
    write_s = perf_counter() - start
    opened = [_paint_s(browser, path) for _ in range(turns)]
    sorts = _sort_s(browser, path, turns)
    slowest = max(sorts, key=lambda column: sorts[column])
    return Outcome(
        subject=name,
        ops=len(analysis.ops),
        modules=len(analysis.modules),
        write_s=write_s,
        page_bytes=path.stat().st_size,
        paint_s=median(opened),
        sort_s=sorts[slowest],
        slowest=slowest,
    )


def _open(browser: Browser, path: Path) -> Page:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.add_init_script(WATCH)
    page.goto(path.as_uri())
    return page


def _paint_s(browser: Browser, path: Path) -> float:
    page = _open(browser, path)
    painted = page.evaluate(PAINTED)
    page.context.close()
    return float(painted) / 1e3


def _sort_s(browser: Browser, path: Path, turns: int) -> dict[str, float]:
    """The median of each column of the tables; the modules as a list, so that all of them are sorted."""
    page = _open(browser, path)
    page.evaluate("tg.drawAll()")
    page.locator("#modules button", has_text="List").click()
    found = {}
    for section in TABLES:
        for place, label in enumerate(page.locator(f"#{section} [role=columnheader]").all_inner_texts()):
            times: list[Any] = [page.evaluate(SORT, [section, place]) for _ in range(turns)]
            found[f"{section}, {label.strip(' ↑↓')}"] = median(times) / 1e3
    page.context.close()
    return found


def judged(outcomes: Iterable[Outcome]) -> list[Verdict]:
    verdicts = []
    for one in outcomes:
        most = LARGE_BYTES if one.ops >= LARGE_OPS else ORDINARY_BYTES
        verdicts += [
            Verdict(f"{one.subject}: under {most / 1e6:g} MB", f"{one.page_bytes / 1e6:.2f} MB", one.page_bytes < most),
            Verdict(
                f"{one.subject}: paints under {FIRST_PAINT_S:g} s", f"{one.paint_s:.2f} s", one.paint_s < FIRST_PAINT_S
            ),
            Verdict(
                f"{one.subject}: sorts under {SORT_S * 1e3:g} ms", f"{one.sort_s * 1e3:.0f} ms", one.sort_s < SORT_S
            ),
        ]
    return verdicts


def page_table(outcomes: Iterable[Outcome]) -> str:
    header = ["model", "ops", "modules", "written in s", "MB", "painted after s", "slowest sort ms", "column"]
    return tables.table(
        header,
        [
            [
                one.subject,
                f"{one.ops:,}",
                f"{one.modules:,}",
                f"{one.write_s:.2f}",
                f"{one.page_bytes / 1e6:.2f}",
                f"{one.paint_s:.2f}",
                f"{one.sort_s * 1e3:.0f}",
                one.slowest,
            ]
            for one in outcomes
        ],
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--turns", type=int, default=5, help="openings and sorts; the median counts")
    parser.add_argument("-o", dest="output", type=Path, metavar="FILE", help="the results as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
