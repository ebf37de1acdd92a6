from __future__ import annotations

import torch
from torch import Tensor, nn

from torchgauge.measure import HostWatch, Subject


class Launching(nn.Module):
    """A call takes one second, two every other time; waiting for its work takes ten."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.calls = 0.0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.now += 1.0 + self.calls % 2
        return x


class Waiting(Subject):
    def synchronize(self) -> None:
        assert isinstance(self.model, Launching)
        self.model.now += 10.0


def test_the_hosts_time_ends_when_the_call_returns() -> None:
    model = Launching()
    watch = HostWatch(Waiting(model, (torch.ones(1),), {}, torch.device("cpu")), clock=lambda: model.now)

    assert watch.median_s is None
    for _ in range(3):
        watch.run()
    assert watch.median_s == 2.0
    assert model.now == 3 * 20.0 + 5.0
