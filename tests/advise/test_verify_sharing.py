"""Parameters that are there twice or for nothing, and what is computed from them alone."""

from __future__ import annotations

import pytest
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.advise.trying import advised, apart, applied, bench, changed, row, x
from torchgauge.verify import judge

pytestmark = pytest.mark.usefixtures("one_thread")


class Summed(nn.Module):
    def __init__(self, parts: nn.ModuleDict) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = sum(part(x) for part in self.parts.values())
        return y


def test_equal_weights_are_shared_and_their_bytes_are_saved() -> None:
    a, b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    b.weight.data.copy_(a.weight.data)
    wrapped = Summed(nn.ModuleDict({"a": a, "b": b}))
    place = bench(wrapped, x(2, 8))
    advice = row(
        "tied-weights", "param_bytes", module="parts.b", weight="parts.b.weight", same_values_as="parts.a.weight"
    )
    verdict = judge(place, [applied(place, advice)], "param_bytes", 1e-3)

    assert verdict.gain == 0.5
    assert verdict.is_kept
    assert verdict.error.relative == 0
    assert verdict.time is not None


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.used(x)
        return y


def test_what_is_not_used_is_taken_out_and_its_bytes_are_saved() -> None:
    model = Half().eval()
    place = bench(model, x(2, 8))
    advice = advised(model, "unused-parameters", x(2, 8))
    verdict = judge(place, [applied(place, advice)], "param_bytes", 1e-3)

    assert verdict.gain == 0.5
    assert (verdict.before, verdict.after) == (2 * 72 * 4, 72 * 4)
    assert verdict.is_kept


def test_a_parametrization_is_computed_once() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(64, 64))).eval()
    place = bench(model, x(1, 64))

    side = changed(place, advised(model, "recomputed-weight", x(1, 64)))

    assert [name for name, _ in side.subject.model.named_parameters()] == ["0.bias", "0.weight"]
    assert apart(place, side) < 1e-6
