"""torchgauge and its peers on the same models: time over a bare forward, and multiply-accumulates over the true ones.

Each tool runs in a separate process: several patch torch and do not undo all of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from peers import PEERS, Peer
from subjects import HEADLINE, Subject
from timing import analyse, bound, private_copy, time_in_turns, true_macs

OURS = "torchgauge"


@dataclass(frozen=True, slots=True)
class Result:
    """One tool on one model; without figures where the tool failed, and then with what it said."""

    subject: str
    tool: str
    true_macs: int | None = None
    macs: int | None = None
    ratio: float | None = None
    bare_s: float | None = None
    tool_s: float | None = None
    first_s: float | None = None
    failure: str | None = None

    @property
    def accuracy(self) -> float | None:
        return self.macs / self.true_macs if self.macs is not None and self.true_macs else None


@dataclass(frozen=True, slots=True)
class Effort:
    """`turns` of forward and tool, fewer once `budget_s` is spent."""

    turns: int
    budget_s: float


def installed_tools() -> list[str]:
    return [OURS, *(peer.name for peer in PEERS.values() if peer.version is not None)]


def absent_packages() -> list[str]:
    return sorted({peer.package for peer in PEERS.values() if peer.version is None})


def compare_apart(tool: str, effort: Effort) -> list[Result]:
    """`compare` over the headline models in a fresh process."""
    command = [sys.executable, str(Path(__file__)), tool, str(effort.turns), str(effort.budget_s)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return [Result(**fields) for fields in json.loads(done.stdout.splitlines()[-1])]
    said = f"its process ended with {done.returncode}: {(done.stderr.splitlines() or [''])[-1][:200]}"
    if tool == OURS:
        raise RuntimeError(said)
    return [Result(subject.name, tool, failure=said) for subject in HEADLINE]


def compare(tool: str, subjects: Sequence[Subject], effort: Effort) -> list[Result]:
    torch.set_num_threads(1)
    return [_result(_adapter(tool), subject, effort) for subject in subjects]


def _adapter(tool: str) -> Peer:
    return Peer(OURS, OURS, analyse) if tool == OURS else PEERS[tool]


def _result(tool: Peer, subject: Subject, effort: Effort) -> Result:
    model, args = subject.ready()
    call = bound(tool.count, *private_copy(model, args, on_meta=tool.on_meta))
    truth = true_macs(*private_copy(model, args))
    try:
        timing = time_in_turns(model, args, call, turns=effort.turns, budget_s=effort.budget_s)
    except Exception as error:  # whatever a peer raises is its result
        if tool.name == OURS:
            raise
        said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return Result(subject.name, tool.name, truth, failure=said)
    return Result(
        subject.name, tool.name, truth, timing.macs, timing.ratio, timing.bare_s, timing.tool_s, timing.first_s
    )


def _main() -> None:
    tool, turns, budget_s = sys.argv[1:]
    results = compare(tool, HEADLINE, Effort(int(turns), float(budget_s)))
    print(json.dumps([asdict(result) for result in results]))


if __name__ == "__main__":
    _main()
