"""Lines that blind judges found wrong or unclear on public models (docs/advice-corpus.md, fifteenth set), as classes
and on other models."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.planted import seen
from torchgauge.advise import advise

# --- folded norms whose gain depends on which memory the process keeps


@pytest.mark.parametrize(("side", "is_named"), [(16, True), (64, False)])
def test_a_fold_that_saves_fresh_memory_rather_than_time_is_not_promised(side: int, is_named: bool) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        kept = []
        for layer in self.layers:
            a = layer(a)
            kept.append(a)
        return sum((each.mean((2, 3)) for each in kept), start=a.mean((2, 3)))

    layers = [nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64)) for _ in range(8)]

    evidence = seen(Does(forward, layers=nn.ModuleList(layers)).eval(), inputs=(x(1, 64, side, side),))

    assert ("conv-bn-fusion" in {advice.rule for advice in advise(evidence)}) == is_named
