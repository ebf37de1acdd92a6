"""Masks that become flags, experts that have a router, products that are slower as one, memory of kept results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen
from torchgauge import analyze
from torchgauge.advise import Advice


def of_rule(model: nn.Module, rule: str, *inputs: Any) -> list[Advice]:
    return [advice for advice in said(seen(model, inputs=inputs)) if advice.rule == rule]


# --- masks that are causal in this call alone


class Memory(nn.Module):
    """Attention over 128 positions and what a cache holds before them."""

    hidden: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.register_buffer("hidden", torch.ones(256, 256).triu(1).bool())

    def heads(self, h: Tensor) -> list[Tensor]:
        return [part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.qkv(h).chunk(3, -1)]


class BehindCache(Memory):
    def forward(self, h: Tensor, past: int = 0) -> Tensor:
        q, k, v = self.heads(h)
        length = h.shape[1]
        scores = q @ k.transpose(-2, -1) / 4.0
        scores = scores.masked_fill(self.hidden[past : past + length, : past + length], float("-inf"))
        return torch.softmax(scores, -1) @ v


class FromCaller(Memory):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / 4.0
        scores = scores.masked_fill(hidden, float("-inf"))
        return torch.softmax(scores, -1) @ v

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.heads(h)
        return self.attend(q, k, v, torch.ones(h.shape[1], h.shape[1]).triu(1).bool())


class ShiftedDiagonal(Memory):
    def forward(self, h: Tensor, past: int = 0) -> Tensor:
        q, k, v = self.heads(h)
        hidden = torch.ones(q.shape[-2], k.shape[-2]).triu(past + 1).bool()
        scores = q @ k.transpose(-2, -1) / 4.0
        scores = scores.masked_fill(hidden, float("-inf"))
        return torch.softmax(scores, -1) @ v


class FromFirstRow(Memory):
    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.heads(h)
        length = h.shape[1]
        scores = q @ k.transpose(-2, -1) / 4.0
        scores = scores.masked_fill(self.hidden[:length, :length], float("-inf"))
        return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize(
    ("kind", "is_causal"),
    [(BehindCache, False), (FromCaller, False), (ShiftedDiagonal, False), (FromFirstRow, True)],
)
def test_a_mask_becomes_a_flag_only_where_every_call_has_the_same(kind: type[nn.Module], is_causal: bool) -> None:
    (found,) = of_rule(kind(), "attention-by-hand", x(4, 128, 64))

    assert found.code is not None
    assert ("is_causal=True" in found.code) is is_causal
    assert ("attn_mask=" in found.code) is not is_causal


class Shown(Memory):
    """The weights stay in the module, for a plot."""

    weights: Tensor | None

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.keeps, self.weights = keeps, None

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.heads(h)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 4.0, -1)
        if self.keeps:
            self.weights = weights
        return weights @ v


@pytest.mark.parametrize("keeps", [True, False])
def test_attention_whose_weights_the_module_keeps_stays_as_it_is(keeps: bool) -> None:
    assert bool(of_rule(Shown(keeps), "attention-by-hand", x(4, 128, 64))) is not keeps


# --- what the input picks is not routed


class Speakers(nn.Module):
    """A state for each of two speakers; who speaks, an input says or a layer computes."""

    def __init__(self, has_router: bool) -> None:
        super().__init__()
        self.states = nn.ModuleList(nn.Linear(256, 256) for _ in range(2))
        self.router = nn.Linear(256, 2) if has_router else None

    def forward(self, said: Tensor, speaker: Tensor) -> Tensor:
        scores = speaker if self.router is None else self.router(said)
        chosen = scores.argmax(-1)
        both = torch.stack([state(said) for state in self.states], 1)
        return both[torch.arange(len(said)), chosen]


@pytest.mark.parametrize("has_router", [True, False])
def test_experts_have_a_router(has_router: bool) -> None:
    found = of_rule(Speakers(has_router), "dense-experts", x(512, 256), x(512, 2))

    assert bool(found) is has_router


# --- products that are slower as one


def summed(self: Any, weights: Tensor, values: Tensor) -> Tensor:
    return torch.relu((weights * values.unsqueeze(-3)).sum(-2))


@pytest.mark.parametrize(
    ("weights", "values", "is_product"),
    [((8, 64, 300, 64), (8, 300, 64), False), ((8, 64, 300, 1), (8, 300, 512), True)],
    ids=["a weight for each feature", "one weight for all features"],
)
def test_a_sum_of_products_by_feature_is_not_a_matrix_product(
    weights: tuple[int, ...], values: tuple[int, ...], is_product: bool
) -> None:
    assert bool(of_rule(Does(summed), "product-then-sum", x(*weights), x(*values))) is is_product


@pytest.mark.parametrize(("rows", "is_worth_it"), [(5, False), (600, True)])
def test_a_small_copy_of_a_matmul_costs_less_than_einsum(rows: int, is_worth_it: bool) -> None:
    model = Does(lambda self, h: torch.relu(torch.matmul(h.unsqueeze(1), self.heads)), heads=nn.Parameter(x(4, 32, 16)))

    assert bool(of_rule(model, "broadcast-matmul", x(8, rows, 32))) is is_worth_it


# --- a forecast of products without rows


class Dispatched(nn.Module):
    """No sample has the second mark, so that the second layer gets none."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, h: Tensor) -> Tensor:
        marks = torch.zeros(len(h), dtype=torch.long)
        return torch.cat([layer(h[marks == at]) for at, layer in enumerate(self.layers)])


def test_a_product_without_rows_has_a_forecast() -> None:
    result = analyze(Dispatched(), inputs=(x(16, 32),), on="h200", progress=False)

    assert result.capture.forecast


# --- results that are kept instead of being made again


class Residuals(nn.Module):
    """Each layer adds the same part of the input, a small product beside large ones."""

    def __init__(self, layers: int = 12, width: int = 96) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, given: Tensor) -> Tensor:
        h = given
        for layer in self.layers:
            h = torch.relu(0.9 * layer(h) + 0.1 * given)
        return h


def test_memory_of_a_result_that_is_kept_is_not_saved() -> None:
    evidence = seen(Residuals().eval(), inputs=(x(2048, 96),))
    (found,) = [advice for advice in said(evidence) if advice.rule == "repeated-work"]
    assert found.expected_gain is not None
    assert found.expected_gain.touched is not None
    # As if the heap grew again with every result.
    times = replace(evidence.times, fresh_s={op.index: 1e-3 for op in evidence.forward})
    kept, freed = (times.saved_range(found.expected_gain.touched, keeps) for keeps in (True, False))
    assert kept[1] < freed[1]
    assert found.expected_gain.keeps_results
