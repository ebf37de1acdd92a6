"""Peaks of live memory, compared with what torch's own profiler sees a run allocate."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import torchgauge as tg


def allocated_peak(model: nn.Module, *inputs: torch.Tensor) -> int:
    """The inputs, and the most that one call allocates beyond them."""
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        model(*inputs)
    events = [event for event in run.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return sum(tensor.nbytes for tensor in inputs) + peak


class Applied(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


SINGLE = torch.randn(200, 300)
HALF = SINGLE.bfloat16()
BYTES = torch.randint(-8, 8, (200, 300), dtype=torch.int8)
PROMOTIONS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "product": (torch.mul, (BYTES, SINGLE)),
    "with a scale per row": (torch.mul, (HALF, torch.randn(200, 1))),
    "in place": (torch.Tensor.add_, (HALF.clone(), SINGLE)),
    "with a Python number": (lambda x: x * 2.0, (BYTES,)),
    "one type, so no copy": (torch.mul, (SINGLE, SINGLE.clone())),
    "a number that changes no type": (lambda x: x * 2.0, (HALF,)),
    "comparison": (torch.lt, (SINGLE, HALF)),
    "comparison with a number": (lambda x: x > 0.5, (BYTES,)),
    "selection": (lambda x, y: torch.where(x > 0, x, y), (SINGLE, HALF)),
    "two half types": (torch.add, (SINGLE.half(), HALF)),
    "complex by real": (torch.mul, (torch.complex(SINGLE, SINGLE), SINGLE)),
    "three operands": (torch.addcmul, (SINGLE, HALF, HALF)),
    "root of integers": (torch.sqrt, (BYTES,)),
    "sum in another type": (lambda x: x.sum(0, dtype=torch.float32), (HALF,)),
    "sum of integers": (lambda x: x.sum(0), (BYTES,)),
    "mask": (lambda x: x.masked_fill(x > 0, 0), (HALF,)),
}


@pytest.mark.parametrize("name", PROMOTIONS)
def test_the_peak_includes_the_copies_in_another_type_that_the_cpu_makes(name: str) -> None:
    function, inputs = PROMOTIONS[name]
    model = Applied(function)
    found = tg.analyze(model, inputs=tuple(tensor.clone() for tensor in inputs), advice=False)
    peak = allocated_peak(model, *(tensor.clone() for tensor in inputs))
    assert found.totals.peak_activation_bytes == pytest.approx(peak, abs=64)  # torch makes tensors of its numbers


class Dequantized(nn.Module):
    """A linear layer that unpacks its weight in every call, as quantization libraries do on the CPU."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-8, 8, (512, 256), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(512, 256 // 32, 1, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grouped = self.weight.view(512, -1, 32) * self.scale.float()
        return nn.functional.linear(x, grouped.view(512, 256).to(x.dtype))


def test_the_peak_includes_dequantized_weights_and_what_their_scaling_copies() -> None:
    x = torch.randn(4, 256, dtype=torch.bfloat16)
    found = tg.analyze(Dequantized(), inputs=x, advice=False)
    assert found.totals.peak_activation_bytes == pytest.approx(allocated_peak(Dequantized(), x), rel=0.01)


class Fitted(nn.Module):
    """Estimates statistics from the first batch and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.order: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.order is None:
            self.order = torch.cdist(x, x).sort(-1).values[:, 0]
        return x * self.order[:, None]


def test_the_peak_of_later_calls_is_named_where_the_first_one_also_initializes() -> None:
    x, model = torch.randn(300, 8), Fitted()
    found = tg.analyze(model, inputs=x, advice=False)
    first = allocated_peak(model, x)
    later = allocated_peak(model, x)
    assert found.totals.peak_activation_bytes == pytest.approx(first, rel=0.05)
    assert found.capture.run.later_peak_bytes == later < first / 10
    assert found.to_dict()["capture"]["later_peak_bytes"] == later
    assert "In later calls" in str(found)
    assert tg.analyze(Dequantized(), inputs=torch.randn(1, 256), advice=False).capture.run.later_peak_bytes is None


class Squared(nn.Module):
    def __init__(self, adjacency: torch.Tensor) -> None:
        super().__init__()
        self.adjacency = adjacency

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.adjacency @ self.adjacency).to_dense() @ x


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_product_of_sparse_matrices_counts_the_elements_that_meet(layout: str) -> None:
    dense = (torch.rand(40, 40) < 0.05).float()
    dense[3] = dense[:, 3] = 1  # a node that is connected to all others
    adjacency = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
    found = tg.analyze(Squared(adjacency), inputs=torch.randn(40, 2), advice=False)
    # The product of the patterns counts at each place the pairs that were added up there.
    pairs = int((dense @ dense).sum())
    assert found.totals.macs == pairs + 40 * 40 * 2
