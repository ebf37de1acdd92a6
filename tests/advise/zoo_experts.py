"""Experts with too many tokens or none, and threads without cores; loads are those of a real run, times are given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tests.advise.planted import Planted, seen, timed
from torchgauge.advise import Evidence

WIDTH, EXPERTS, TOKENS = 32, 8, 256


class Routed(nn.Module):
    """Looks at its data, so it is run for real; `favoured` gets every token. `stacked`: one tensor for all experts."""

    def __init__(self, *, favoured: bool = False, stacked: bool = False, starved: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(0 if stacked else EXPERTS))
        self.stacked = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH)) if stacked else None
        with torch.no_grad():
            self.gate.bias.zero_()
            self.gate.bias[2] = 50.0 if favoured else 0.0
            if starved == "router":
                self.gate.weight[3] = 0
            elif starved == "expert":
                self.get_parameter("experts.3.weight").mul_(1e-3)
            elif starved == "stacked":
                self.get_parameter("stacked")[3] = 0

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x).softmax(-1)
        gates, choice = scores.topk(1, dim=-1)
        out = torch.zeros_like(x)
        if float(scores.max()) > 1.5:
            return out
        for number in range(EXPERTS):
            rows = (choice[:, 0] == number).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, gates[rows] * self._expert(number, x[rows]))
        return out

    def _expert(self, number: int, rows: Tensor) -> Tensor:
        made: Tensor = rows @ self.stacked[number] if self.stacked is not None else self.experts[number](rows)
        return made


def routed(weights: bool = False, **settings: Any) -> Evidence:
    x = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))
    return seen(Routed(**settings), inputs=x, weights=weights, deep=weights)


def threaded(threads: int, cores: int, *, others: float = 0.0, efficiency: float = 0.9) -> Evidence:
    """A measured run with so many threads on a machine of so many cores."""
    evidence = seen(nn.Linear(WIDTH, WIDTH), 4, WIDTH)
    environment = replace(evidence.capture.environment, cpu_cores=cores, settings={"OMP_NUM_THREADS": str(threads)})
    figures = {
        "latency": {"median_s": 1e-3},
        "threads": {"intra_op": threads, "utilisation": efficiency},
        "surroundings": {"other_processes_share": others},
    }
    return timed(Evidence(replace(evidence.capture, environment=environment)), figures)


CASES = [
    Planted("too many threads", "thread-oversubscription", "", lambda: threaded(16, 4), lambda: threaded(4, 4)),
    Planted(
        "a busy machine",
        "thread-oversubscription",
        "",
        lambda: threaded(16, 8),
        lambda: threaded(16, 8, others=0.5),
    ),
    Planted("one thread", "idle-cores", "", lambda: threaded(1, 16), lambda: threaded(8, 16)),
    Planted("one thread, shared", "idle-cores", "", lambda: threaded(1, 16), lambda: threaded(1, 16, others=0.2)),
    Planted("one thread, idle", "idle-cores", "", lambda: threaded(1, 16), lambda: threaded(1, 16, efficiency=0.3)),
]
