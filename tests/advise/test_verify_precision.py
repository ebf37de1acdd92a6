"""Narrower types, and the layout they want."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.advise.trying import advised, apart, bench, changed, row, x
from torchgauge.verify import NotApplicableError
from torchgauge.verify.transformations.precision import require_bfloat16

pytestmark = pytest.mark.usefixtures("one_thread")


def test_channels_last_turns_the_weights_and_the_images() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    place = bench(model, x(1, 3, 8, 8))

    side = changed(place, row("channels-last"))
    with torch.no_grad():
        output = side.subject()

    assert side.subject.model[0].weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[index]
    assert output.is_contiguous(memory_format=torch.channels_last)
    assert apart(place, side) < 1e-6


class Casting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(x(64, 64).double())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.table.float()


def test_a_weight_is_kept_in_the_type_it_is_used_in() -> None:
    model = Casting().eval()
    place = bench(model, x(2, 64))

    side = changed(place, advised(model, "weight-cast", x(2, 64)))

    assert side.subject.model.table.dtype is torch.float32
    assert model.table.dtype is torch.float64
    assert apart(place, side) == 0


def test_a_cpu_without_bfloat16_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.capture.supported._probe", lambda name: f"{name} cannot run")

    with pytest.raises(NotApplicableError, match="bfloat16 cannot run"):
        require_bfloat16(torch.device("cpu"))
    require_bfloat16(torch.device("cuda"))


@pytest.mark.parametrize("rule", ["autocast-bf16", "memory-bound-layers"])
def test_narrow_arithmetic_is_what_the_code_asks_for(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a sum alone: it needs no instruction that a CPU may lack."""
    monkeypatch.setattr("torchgauge.capture.supported._probe", lambda name: None)

    class Sum(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, bool]:
            return x + x, torch.is_autocast_enabled("cpu")

    place = bench(Sum(), torch.ones(4))
    output, is_autocast = changed(place, row(rule)).subject()

    assert is_autocast is (rule == "autocast-bf16")
    assert output.dtype is (torch.bfloat16 if rule == "memory-bound-layers" else torch.float32)
