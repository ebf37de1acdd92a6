"""Against fvcore itself: the same counts by module and operator on models without its defects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchgauge.compat.fvcore import nn as ours

original = pytest.importorskip("fvcore.nn")

# fvcore traces, and asks after types in ways that torch and numpy have deprecated since.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.norms = nn.ModuleList([nn.GroupNorm(2, 8), nn.InstanceNorm2d(8)])
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for norm in self.norms:
            x = x + norm(self.depthwise(x))
        x = F.max_pool2d(self.up(x), 2)
        return F.log_softmax(self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)), dim=1)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.mix = nn.Linear(6, 6, bias=False)
        self.unused = nn.Dropout()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mixed = self.mix(self.norm(x))
        scores = torch.softmax(torch.matmul(mixed, y.transpose(1, 2)), -1)
        return torch.bmm(scores, y), torch.einsum("btc,bsc->bts", x, y)


class Sampler(nn.Module):
    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(F.interpolate(x, scale_factor=2, mode="nearest"), grid, align_corners=False)


CASES: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "residual": lambda: (Residual().eval(), torch.randn(2, 3, 16, 16)),
    "residual in training": lambda: (Residual(), torch.randn(2, 3, 16, 16)),
    "mixer": lambda: (Mixer(), (torch.randn(2, 5, 6), torch.randn(2, 7, 6))),
    "sampler": lambda: (Sampler(), (torch.randn(1, 2, 4, 4), torch.randn(1, 3, 3, 2))),
    "linear over three dimensions": lambda: (nn.Linear(3, 4), (torch.randn(2, 5, 3),)),
    "volume": lambda: (nn.Conv3d(1, 2, 3, groups=1), torch.randn(1, 1, 5, 5, 5)),
}


@pytest.mark.parametrize("kind", ["FlopCountAnalysis", "ActivationCountAnalysis"])
@pytest.mark.parametrize("case", list(CASES))
def test_counts_equal_those_of_fvcore(case: str, kind: str) -> None:
    model, inputs = CASES[case]()
    theirs = getattr(original, kind)(model, inputs).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    mine = getattr(ours, kind)(model, inputs).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    assert mine.by_module_and_operator() == theirs.by_module_and_operator()
    assert mine.by_module() == theirs.by_module()
    assert mine.unsupported_ops() == theirs.unsupported_ops()
    assert mine.uncalled_modules() == theirs.uncalled_modules()


def test_handles_written_for_fvcore_work_unchanged() -> None:
    written = pytest.importorskip("fvcore.nn.jit_handles")
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid()), torch.randn(2, 3)
    handles = {
        "aten::linear": written.linear_flop_jit,
        "aten::sigmoid": written.elementwise_flop_counter(0, 4),
    }
    mine = ours.FlopCountAnalysis(model, x).set_op_handle(**handles)
    theirs = original.FlopCountAnalysis(model, x).set_op_handle(**handles)
    assert mine.by_operator() == theirs.by_operator() == {"linear": 24, "sigmoid": 32}
