"""A CUDA graph is recommended only for runs that it can replay."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import x
from torchgauge import analyze


class Stack(nn.Module):
    """A few small layers, and what the classes below do behind them."""

    graph: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(6)))
        self.register_buffer("graph", torch.eye(16).to_sparse())
        self.state: Tensor | None = None
        self.shown: Tensor | None = None
        self.table: Tensor | None = None
        self.calls, self.history = 0, list[Tensor]()

    def forward(self, h: Tensor, chosen: Tensor) -> Tensor:
        return self.behind(self.layers(h), chosen)

    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        return torch.relu(h)


class Noise(Stack):
    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        return h + torch.randn_like(h)


class Shown(Stack):
    """Stored for others to look at, and read in the same call."""

    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        self.shown = torch.relu(h)
        return self.shown + h


class Table(Stack):
    """Made in the first call."""

    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(0, 1, 32, device=h.device)
        return h * self.table


class Recurrent(Stack):
    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        h = h if self.state is None else h + self.state
        self.state = h
        return torch.relu(h)


class Counting(Stack):
    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        self.calls += 1
        return h * 0.9**self.calls


class Remembering(Stack):
    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        self.history.append(h)
        return torch.stack(self.history).mean(0)


class Drawn(Stack):
    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        return torch.relu(h) if random.random() < 2 else h


class Sparse(Stack):
    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        return torch.sparse.mm(self.graph, h)


class Repeated(Stack):
    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        return h.repeat_interleave(chosen.long() + 1, 0)


class Written(Stack):
    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        h = torch.relu(h)
        h[chosen] = h.mean(0)
        return h


class Sampled(Stack):
    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        return torch.multinomial(h.softmax(-1), 1)


class FilledByResult(Stack):
    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        h = torch.relu(h)
        h[chosen] = h.max()
        return h


class FilledByNumber(Stack):
    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        h = torch.relu(h)
        h[chosen] = 0.5
        return h


class Solved(Stack):
    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        return torch.linalg.solve(h.mT @ h, h.mT)


class Packed(Stack):
    """Sequences whose lengths are on the host."""

    lengths = torch.tensor([8, 6])

    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        return nn.utils.rnn.pack_padded_sequence(h.view(2, 8, 32), self.lengths, batch_first=True).data


def is_traced() -> bool:
    """As transformers asks."""
    return torch.compiler.is_compiling() or is_captured()


def is_captured() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class LooksAtMask(Stack):
    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        return h if chosen.all() else h * chosen[:, None]


class LooksOutsideOfGraphs(Stack):
    def behind(self, h: Tensor, chosen: Tensor) -> Tensor:
        if not is_traced() and chosen.all():
            return h
        return h * chosen[:, None]


@pytest.mark.parametrize("kind", [Stack, Noise, Shown, Table, Sampled, FilledByNumber, LooksOutsideOfGraphs])
def test_a_run_that_a_graph_replays_is_one(kind: type[Stack]) -> None:
    assert "launch-bound" in told(kind)


@pytest.mark.parametrize(
    "kind",
    [Recurrent, Counting, Remembering, Drawn, Sparse, Repeated, Written, FilledByResult, Solved, Packed, LooksAtMask],
    ids=lambda k: k.__name__,
)
def test_a_run_that_waits_or_depends_on_earlier_calls_is_not_captured(kind: type[Stack]) -> None:
    assert "launch-bound" not in told(kind)


def test_waits_that_only_runs_outside_of_graphs_have_are_not_named() -> None:
    assert "host-wait" in told(LooksAtMask)
    assert "host-wait" not in told(LooksOutsideOfGraphs)


def told(kind: type[Stack]) -> set[str]:
    found = analyze(kind().eval(), inputs=(x(16, 32), x(16) > 0), on="h200", progress=False)
    return {row.rule for row in found.advice}
