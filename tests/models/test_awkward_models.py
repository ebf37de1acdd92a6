"""Models that other counters fail on: what they are called with, what they share, what they decide as they run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchgauge as tg
from tests import zoo
from tests.models.checked import analyze_checked, assert_same_figures, check_additive
from tests.models.closed_forms import convolution, linear

IDS = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 0, 0, 0]])

CASES: dict[str, tuple[nn.Module, dict[str, Any], int]] = {
    "two inputs": (zoo.TwoInputs(), {"input_size": [(2, 4), (2, 6)]}, linear(2, 4 + 6, 8)),
    "two keywords": (
        zoo.TwoInputs(), {"inputs": {"b": torch.zeros(2, 6), "a": torch.zeros(2, 4)}}, linear(2, 4 + 6, 8),
    ),
    "dict and keywords": (
        zoo.DictInOut(),
        {"inputs": ({"x": torch.zeros(2, 4)},), "kwargs": {"scale": 2.0, "mask": None}},
        linear(2, 4, 4),
    ),
    "dataclass": (zoo.Structured(), {"inputs": (zoo.Batch(torch.zeros(2, 4), [1, 1]),)}, linear(2, 4, 4)),
    "shared layer": (zoo.Reused(), {"input_size": (2, 8)}, 3 * linear(2, 8, 8)),
    "tied weights": (zoo.Tied(), {"inputs": IDS}, linear(10, 16, 50)),
    "unused layer": (zoo.Unused(), {"input_size": (2, 4)}, linear(2, 4, 4)),
    # b i, b j -> b i j sums over nothing: it is a product of elements, not a matrix product.
    "functions only": (zoo.Functional(), {"input_size": (2, 8)}, 3 * linear(2, 8, 8)),
    "branch on a full mask": (zoo.BranchesOnMask(), {"inputs": IDS[:1]}, linear(5, 8, 8)),
    "branch on padding": (zoo.BranchesOnMask(), {"inputs": IDS}, linear(7, 8, 64)),
    "state": (zoo.Remembers(), {"input_size": (2, 4)}, linear(2, 4, 4)),
    "scripted part": (zoo.Scripted(), {"input_size": (2, 4)}, linear(2, 4, 8) + linear(2, 8, 8)),
    "routed experts": (zoo.Router(), {"input_size": (2, 8, 16)}, linear(16, 16, 4) + linear(2 * 16, 16, 16)),
    "wrapped in parallel": (nn.DataParallel(zoo.Residual()), {"input_size": (2, 8)}, 6 * linear(2, 8, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_macs_equal_the_closed_form(name: str) -> None:
    model, options, macs = CASES[name]
    analysis = analyze_checked(model, **options)
    assert analysis.totals.macs == macs
    assert all(row.macs >= 0 for row in analysis.modules)


def test_the_compiled_form_of_a_model_is_analysed_as_the_model() -> None:
    model = zoo.Residual()
    assert_same_figures(
        analyze_checked(model, input_size=(2, 8)),
        tg.analyze(torch.compile(model), input_size=(2, 8)),  # type: ignore[arg-type]
    )


def test_a_shared_layer_has_one_row_with_its_calls_and_its_other_name() -> None:
    row = analyze_checked(zoo.Reused(), input_size=(2, 8)).modules[1]
    assert (row.path, row.aliases, row.calls) == ("first", ["second"], 3)
    assert row.params == 8 * 8 + 8
    assert row.macs == 3 * linear(2, 8, 8)


def test_tied_weights_count_once() -> None:
    analysis = analyze_checked(zoo.Tied(), inputs=IDS)
    assert analysis.totals.params == 50 * 16
    assert [row.params for row in analysis.modules] == [50 * 16] * 3


@pytest.mark.parametrize(("sign", "outputs"), [(1, 16), (-1, 32)])
def test_a_branch_on_float_data_takes_the_way_the_data_takes(sign: int, outputs: int) -> None:
    analysis = tg.analyze(zoo.BranchesOnFloat(), inputs=sign * torch.ones(2, 8))
    assert analysis.capture.run.mode == "real"
    assert analysis.totals.macs == linear(2, 8, outputs)
    check_additive(analysis)


class Loops(nn.Module):
    """Runs its one layer as often as its integer input says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        for _ in range(int(steps)):
            x = self.layer(x)
        return x


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_loop_runs_as_often_as_the_given_number_says(steps: int) -> None:
    analysis = analyze_checked(Loops(), inputs=(torch.zeros(2, 8), torch.tensor(steps)))
    assert analysis.totals.macs == steps * linear(2, 8, 8)
    assert analysis.modules[1].calls == steps


class Weightless(nn.Module):
    """No parameters at all: a filter made on the fly and a product with itself."""

    def forward(self, x: Tensor) -> Tensor:
        kernel = torch.ones(3, 1, 5, 5, dtype=x.dtype, device=x.device) / 25
        y = F.conv2d(x, kernel, padding=2, groups=3).flatten(2)
        return y @ y.mT


def test_a_model_of_functions_without_parameters() -> None:
    analysis = analyze_checked(Weightless(), inputs=torch.zeros(2, 3, 10, 10))
    assert analysis.totals.params == 0
    assert analysis.totals.macs == convolution(2 * 100, 3, 3, (5, 5), groups=3) + 2 * linear(3, 100, 3)


class Siamese(nn.Module):
    """A tower used for two images of different size."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return F.cosine_similarity(self.tower(left), self.tower(right))


def test_a_tower_called_with_two_sizes_adds_both_calls() -> None:
    analysis = analyze_checked(Siamese(), input_size=[(1, 3, 10, 10), (1, 3, 20, 20)])
    assert analysis.totals.macs == convolution(8 * 8, 3, 4, (3, 3)) + convolution(18 * 18, 3, 4, (3, 3))
    assert next(row.calls for row in analysis.modules if row.path == "tower.0") == 2
