"""The static analysis against a bare forward, against other tools, on large models, and as models grow.

    python benchmarks/static.py [-o results.json] [--turns N] [--only SECTION]

Prints Markdown tables and a verdict on every limit; the exit status is 1 where one is broken.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tables
import torch
from comparison import OURS, Effort, Result, absent_packages, compare, compare_apart, installed_tools
from growth import measure_growth
from judging import Verdict, judge_growth, judge_headline, judge_large, judge_sweep
from large import MODELS, measure_apart
from peers import PEERS
from subjects import HEADLINE, SWEEP

from torchgauge.hardware import collect_environment

Section = tuple[str, Any, list[Verdict]]


def main() -> int:
    options = _parse()
    torch.set_num_threads(1)
    effort = Effort(options.turns, options.budget)
    document: dict[str, Any] = {"environment": _environment(), "sections": {}, "verdicts": []}
    judged: list[Verdict] = []
    for name in options.only or SECTIONS:
        text, data, verdicts = SECTIONS[name](effort)
        print(f"\n## {name}\n\n{text}", flush=True)
        document["sections"][name] = data
        judged += verdicts
    print(f"\n## verdict\n\n{tables.verdicts(judged)}")
    document["verdicts"] = [asdict(verdict) for verdict in judged]
    if options.output:
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(verdict.passed for verdict in judged) else 1


def peers(effort: Effort) -> Section:
    results: list[Result] = []
    for tool in installed_tools():
        _say(tool)
        results += compare_apart(tool, effort)
    failures = [f"- {result.tool} fails on {result.subject}: {result.failure}" for result in results if result.failure]
    absent = absent_packages()
    parts = [
        "Time over one bare forward (`no_grad`, one thread):",
        tables.by_tool(results, tables.ratio),
        "MACs over the true ones:",
        tables.by_tool(results, tables.accuracy),
        *(["\n".join(failures)] if failures else []),
        *([f"Not installed: {', '.join(absent)}."] if absent else []),
    ]
    return "\n\n".join(parts), [asdict(result) for result in results], judge_headline(results)


def sweep(effort: Effort) -> Section:
    results: list[Result] = []
    for subject in (*HEADLINE, *SWEEP):
        _say(subject.name)
        results += compare(OURS, [subject], effort)
    return tables.sweep(results), [asdict(result) for result in results], judge_sweep(results)


def large(_: Effort) -> Section:
    rows = []
    for name in MODELS:
        _say(name)
        rows.append(measure_apart(name))
    return tables.large(rows), rows, judge_large(rows)


def growth(_: Effort) -> Section:
    rows = measure_growth()
    return tables.growth(rows), rows, judge_growth(rows)


SECTIONS: dict[str, Callable[[Effort], Section]] = {
    "peers": peers,
    "sweep": sweep,
    "large": large,
    "growth": growth,
}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the static analysis against a bare forward and other tools.")
    parser.add_argument("-o", "--output", type=Path, help="write the results as JSON")
    parser.add_argument("--turns", type=int, default=7, help="turns of forward and tool; the fastest counts")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds after which a tool gets no more turns")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="a section; may be repeated")
    return parser.parse_args()


def _environment() -> dict[str, Any]:
    environment = collect_environment()
    versions = {peer.package: peer.version for peer in PEERS.values() if peer.version}
    return {
        "python": environment.python,
        "torch": environment.torch,
        "platform": environment.platform,
        "cpu": environment.cpu,
        "threads": torch.get_num_threads(),
        "peers": versions,
    }


def _say(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
