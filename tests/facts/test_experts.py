"""Which share of the parameters one token reaches: routers as people write them, and choices that route nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchgauge as tg

WIDTH, INNER, EXPERTS, TOKENS = 16, 24, 6, 20
EXPERT = WIDTH * INNER + INNER + INNER * WIDTH + WIDTH


def expert() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))


class Routed(nn.Module):
    """A router and experts as modules, a layer before and after them, and an expert that all tokens share."""

    def __init__(self, combine: Callable[[Any, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.norm, self.gate = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(expert() for _ in range(EXPERTS))
        self.shared = expert()
        self.combine = combine

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        inner = self.norm(x).reshape(-1, WIDTH)
        routed = self.combine(self, inner, self.gate(inner)).reshape(x.shape)
        return self.after(x + routed + self.shared(self.norm(x)))


class Stacked(nn.Module):
    """Experts as slices of two tensors, with biases."""

    def __init__(self, combine: Callable[[Any, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.up, self.up_bias = (
            nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER)),
            nn.Parameter(torch.randn(EXPERTS, INNER)),
        )
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH))
        self.down_bias = nn.Parameter(torch.randn(EXPERTS, WIDTH))
        self.combine = combine

    def forward(self, x: Tensor) -> Tensor:
        return x + self.combine(self, x, self.gate(x))

    def run(self, x: Tensor) -> Tensor:
        """All experts, side by side: experts × rows × width."""
        inner = F.gelu(torch.bmm(x, self.up) + self.up_bias[:, None])
        return torch.baddbmm(self.down_bias[:, None], inner, self.down)


def gathered(model: Any, x: Tensor, scores: Tensor) -> Tensor:
    gates, chosen = scores.softmax(-1).topk(2)
    out = torch.zeros_like(x)
    for number, each in enumerate(model.experts):
        rows, place = torch.where(chosen == number)
        out.index_add_(0, rows, each(x[rows]) * gates[rows, place, None])
    return out


def masked_top_1(model: Any, x: Tensor, scores: Tensor) -> Tensor:
    out, best = torch.zeros_like(x), scores.argmax(-1)
    for number, each in enumerate(model.experts):
        out[best == number] = each(x[best == number])
    return out


def two_maxima(model: Any, x: Tensor, scores: Tensor) -> Tensor:
    """Like sparse mixers: the best, and the best of the others."""
    first = scores.max(-1, keepdim=True).indices
    second = scores.scatter(-1, first, float("-inf")).max(-1, keepdim=True).indices
    gates = torch.zeros_like(scores).scatter(-1, torch.cat([first, second], -1), 0.5)
    return sum(each(x) * gates[:, number, None] for number, each in enumerate(model.experts))


def cut_sort(model: Any, x: Tensor, scores: Tensor) -> Tensor:
    chosen = scores.sort(dim=-1, descending=True).indices[:, :2]
    outputs = torch.stack([each(x) for each in model.experts], 1)
    return outputs.gather(1, chosen[..., None].expand(-1, -1, WIDTH)).mean(1)


def threshold(model: Any, x: Tensor, scores: Tensor) -> Tensor:
    gates = scores.sigmoid()
    gates = torch.where(gates >= gates.topk(2).values[:, -1:], gates, 0)
    return torch.einsum("te,ted->td", gates, torch.stack([each(x) for each in model.experts], 1))


def straight_through(model: Any, x: Tensor, scores: Tensor) -> Tensor:
    gates = F.gumbel_softmax(scores, hard=True)
    return sum(each(x * gates[:, number, None]) for number, each in enumerate(model.experts))


def group_limited(model: Any, x: Tensor, scores: Tensor) -> Tensor:
    """Two of three groups of two experts, by the sum of their best; then three experts of those."""
    scores = scores.sigmoid()
    groups = scores.view(-1, 3, 2).topk(2, dim=-1).values.sum(-1).topk(2).indices
    mask = (
        torch.zeros(len(x), 3, device=x.device).scatter_(1, groups, 1)[..., None].expand(-1, 3, 2).reshape(-1, EXPERTS)
    )
    chosen = scores.masked_fill(mask == 0, 0).topk(3).indices
    gates = scores.gather(1, chosen)
    out = torch.zeros_like(x)
    for number, each in enumerate(model.experts):
        rows, place = torch.where(chosen == number)
        out.index_add_(0, rows, each(x[rows]) * gates[rows, place, None])
    return out


def dispatched(model: Any, x: Tensor, scores: Tensor) -> Tensor:
    """Fixed places per expert, filled and emptied by products with a mask (GShard, Switch)."""
    gate, best = scores.softmax(-1).max(-1)
    mask = F.one_hot(best, EXPERTS)
    place = F.one_hot(((mask.cumsum(0) - 1) * mask).sum(-1).clamp(max=7), 8)
    dispatch = mask[:, :, None].to(x.dtype) * place[:, None].to(x.dtype)
    inputs = torch.einsum("tec,td->ecd", dispatch, x)
    outputs = torch.stack([each(rows) for each, rows in zip(model.experts, inputs, strict=True)])
    return torch.einsum("tec,ecd->td", dispatch * gate[:, None, None], outputs)


def all_stacked(model: Stacked, x: Tensor, scores: Tensor) -> Tensor:
    values, chosen = scores.topk(2)
    gates = torch.zeros_like(scores).scatter(1, chosen, values.softmax(-1))
    return (model.run(x.expand(EXPERTS, -1, -1)) * gates.t()[..., None]).sum(0)


def weighted_inputs(model: Stacked, x: Tensor, scores: Tensor) -> Tensor:
    values, chosen = scores.topk(2)
    gates = torch.full_like(scores, float("-inf")).scatter_(1, chosen, values).sigmoid()
    return model.run(x.expand(EXPERTS, -1, -1) * gates.t()[..., None]).sum(0)


def looked_up(model: Stacked, x: Tensor, scores: Tensor) -> Tensor:
    """The weights of the chosen experts are gathered, one copy per token."""
    values, chosen = scores.topk(2)
    rows = chosen.reshape(-1)
    inner = torch.bmm(x.repeat_interleave(2, 0)[:, None], model.up[rows]) + model.up_bias[rows][:, None]
    out = torch.bmm(F.gelu(inner), model.down[rows]) + model.down_bias[rows][:, None]
    return (out.view(-1, 2, WIDTH) * values.softmax(-1)[..., None]).sum(1)


def sliced(model: Stacked, x: Tensor, scores: Tensor) -> Tensor:
    values, chosen = scores.topk(2)
    out = torch.zeros_like(x)
    for number in range(EXPERTS):
        rows, place = torch.where(chosen == number)
        up, gate = model.up[number].chunk(2, -1)
        bias, gate_bias = model.up_bias[number].chunk(2)
        half = F.silu(x[rows] @ gate + gate_bias) * (x[rows] @ up + bias)
        inner = torch.cat([half, half], -1) @ model.down[number] + model.down_bias[number]
        out.index_add_(0, rows, inner * values[rows, place, None])
    return out


def experts_choose(model: Stacked, x: Tensor, scores: Tensor) -> Tensor:
    """Each expert takes the five tokens of twenty that score best with it."""
    gates, rows = scores.softmax(-1).t().topk(5)
    out = model.run(x[rows]) * gates[..., None]
    return torch.zeros_like(x).index_add(0, rows.reshape(-1), out.reshape(-1, WIDTH))


def repeated(model: Stacked, x: Tensor, scores: Tensor) -> Tensor:
    """The weights are repeated along a batch of sequences."""
    values, chosen = scores.topk(2)
    gates = torch.zeros_like(scores).scatter(-1, chosen, values).view(2, -1, EXPERTS)
    inner = F.gelu(x.view(2, 1, -1, WIDTH) @ model.up + model.up_bias[:, None])
    out = inner @ model.down + model.down_bias[:, None]
    return (out * gates.transpose(1, 2)[..., None]).sum(1).view(x.shape)


def flattened(model: Stacked, x: Tensor, scores: Tensor) -> Tensor:
    """All experts as one wide layer, of which the gates leave two; the second layer sums them up."""
    values, chosen = scores.topk(2)
    gates = torch.zeros_like(scores).scatter(-1, chosen, values)
    inner = x @ model.up.transpose(0, 1).flatten(1) + model.up_bias.flatten()
    inner = F.gelu(inner).unflatten(-1, (EXPERTS, INNER)) * gates[..., None]
    return inner.flatten(1) @ model.down.flatten(0, 1) + (gates[..., None] * model.down_bias).sum(1)


def under_autocast(model: Stacked, x: Tensor, scores: Tensor) -> Tensor:
    with torch.autocast("cpu"):
        return all_stacked(model, x, scores)


BY_MODULES = {
    gathered: 2, masked_top_1: 1, two_maxima: 2, cut_sort: 2, threshold: 2, straight_through: 1, group_limited: 3,
    dispatched: 1,
}  # fmt: skip
BY_SLICES = {
    all_stacked: 2, weighted_inputs: 2, looked_up: 2, sliced: 2, experts_choose: 5 * EXPERTS / TOKENS, repeated: 2,
    flattened: 2, under_autocast: 2,
}  # fmt: skip


@pytest.mark.parametrize("combine", BY_MODULES, ids=lambda combine: combine.__name__)
def test_a_token_reaches_the_chosen_of_the_experts_that_are_modules(combine: Any, tmp_path: Path) -> None:
    found = tg.analyze(Routed(combine), input_size=(2, TOKENS // 2, WIDTH))
    assert found.totals.active_params == found.totals.params - (EXPERTS - BY_MODULES[combine]) * EXPERT
    found.save(tmp_path / "run.json")
    assert tg.load(tmp_path / "run.json").totals.active_params == found.totals.active_params


@pytest.mark.parametrize("combine", BY_SLICES, ids=lambda combine: combine.__name__)
def test_a_token_reaches_the_chosen_of_the_experts_that_are_slices(combine: Any) -> None:
    found = tg.analyze(Stacked(combine), input_size=(TOKENS, WIDTH))
    assert found.totals.active_params == found.totals.params - round((EXPERTS - BY_SLICES[combine]) * EXPERT)


@pytest.mark.parametrize("combine", [all_stacked, weighted_inputs])
def test_experts_that_are_all_computed_are_reported(combine: Any) -> None:
    found = tg.analyze(Stacked(combine), input_size=(TOKENS, WIDTH))
    assert any("all 6 experts are computed for every token" in text for text in found.capture.run.warnings)
    assert found.totals.macs == TOKENS * (WIDTH * EXPERTS + EXPERTS * 2 * WIDTH * INNER)
    sparse = tg.analyze(Stacked(looked_up), input_size=(TOKENS, WIDTH))
    assert not any("experts are computed" in text for text in sparse.capture.run.warnings)


SIZES = {"d": WIDTH, "f": INNER, "e": EXPERTS}


class Spelled(nn.Module):
    """Every expert is computed, by two products that are written as equations; the dimensions of their weights, of
    their results and of the gates are in any order."""

    def __init__(self, first: str, second: str, combine: str) -> None:
        super().__init__()
        self.first, self.second, self.combine = first, second, combine
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        up, down = (equation.split("->")[0].split(",")[1] for equation in (first, second))
        self.up = nn.Parameter(torch.randn([SIZES[letter] for letter in up]))
        self.down = nn.Parameter(torch.randn([SIZES[letter] for letter in down]))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x).softmax(-1)
        values, chosen = scores.topk(4)  # more than half: a product that goes unseen would halve the computed share
        gates = torch.zeros_like(scores).scatter(-1, chosen, values)
        operands = [torch.einsum(self.first, x, self.up).relu(), self.down]
        if not self.combine:
            return torch.einsum(self.second, *operands, gates)
        return torch.einsum(self.combine, torch.einsum(self.second, *operands), gates)


@pytest.mark.parametrize(
    ("first", "second", "combine"),
    [
        ("td,edf->etf", "etf,efd->etd", "etd,te->td"),
        ("td,edf->tef", "tef,efd->ted", "ted,te->td"),
        ("td,edf->tef", "tef,efd,te->td", ""),
        ("td,def->tef", "tef,fed->ted", "ted,te->td"),
        ("td,fde->tef", "tef,dfe->dte", "dte,te->td"),
        ("td,efd->fte", "fte,def->ted", "ted,te->td"),
        ("bsd,edf->bsef", "bsef,efd->bsed", "bsed,bse->bsd"),
        ("bsd,edf->ebsf", "ebsf,efd->ebsd", "ebsd,bse->bsd"),
    ],
)
def test_a_token_reaches_the_chosen_experts_however_their_product_is_spelled(
    first: str, second: str, combine: str
) -> None:
    shape = (2, TOKENS // 2, WIDTH) if first.startswith("b") else (TOKENS, WIDTH)
    found = tg.analyze(Spelled(first, second, combine), input_size=shape)
    assert found.totals.active_params == WIDTH * EXPERTS + 4 * 2 * WIDTH * INNER
    assert any("all 6 experts are computed for every token" in text for text in found.capture.run.warnings)


class OneByOne(nn.Module):
    """The router decides which module is called."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(expert() for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.experts[int(self.gate(row).argmax())](row) for row in x])


@pytest.mark.parametrize("rows", [1, 4])
def test_an_expert_that_is_called_by_number(rows: int) -> None:
    found = tg.analyze(OneByOne(), inputs=torch.randn(rows, WIDTH))
    assert found.totals.active_params == found.totals.params - (EXPERTS - 1) * EXPERT


def test_mixtures_in_a_row_and_used_twice_have_their_own_choices() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_1, self.gate_2 = nn.Linear(WIDTH, EXPERTS), nn.Linear(WIDTH, EXPERTS)
            self.experts_1 = nn.ModuleList(expert() for _ in range(EXPERTS))
            self.experts_2 = nn.ModuleList(expert() for _ in range(EXPERTS))

        def mix(self, x: Tensor, gate: nn.Module, experts: Any) -> Tensor:
            model = nn.Module()
            model.experts = experts
            return gathered(model, x, gate(x))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            once = [self.mix(self.mix(z, self.gate_1, self.experts_1), self.gate_2, self.experts_2) for z in (x, y)]
            return once[0] * once[1]

    found = tg.analyze(Two(), input_size=[(TOKENS, WIDTH), (TOKENS, WIDTH)])
    assert found.totals.active_params == found.totals.params - 2 * (EXPERTS - 2) * EXPERT


class BestTokens(nn.Module):
    """Like two-stage detectors: the best tokens go through layers of equal shapes; nothing is chosen among weights."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(WIDTH, 1)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(TOKENS))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        best = self.score(x)[..., 0].topk(3).indices
        x = x.gather(1, best[..., None].expand(-1, -1, WIDTH))
        x = self.attention(x, x, x)[0]
        for layer in self.layers:
            x = layer(x)
        return [head(x) for head in self.heads]


class Codebook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(EXPERTS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.codes(torch.cdist(x, self.codes.weight).argmin(-1))


class Neighbours(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(TOKENS))

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x, x).topk(3, largest=False).indices
        for layer in self.layers:
            x = layer(x)[nearest].amax(1)
        return x


def soft(model: Any, x: Tensor, scores: Tensor) -> Tensor:
    return torch.einsum("te,ted->td", scores.softmax(-1), torch.stack([each(x) for each in model.experts], 1))


@pytest.mark.parametrize(
    ("model", "shape"),
    [(BestTokens(), (2, TOKENS, WIDTH)), (Codebook(), (TOKENS, WIDTH)), (Neighbours(), (TOKENS, WIDTH)),
     (Routed(soft), (2, 3, WIDTH))],
    ids=["tokens", "codebook", "neighbours", "soft"],
)  # fmt: skip
def test_without_routing_all_parameters_are_active(model: nn.Module, shape: tuple[int, ...]) -> None:
    totals = tg.analyze(model, input_size=shape).totals
    assert totals.active_params == totals.params


class ExpertsChoose(nn.Module):
    """Each expert takes its favourite tokens, two experts for a token on average."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up, self.down = (nn.Parameter(torch.zeros(EXPERTS, *size)) for size in ((WIDTH, INNER), (INNER, WIDTH)))

    def forward(self, x: Tensor) -> Tensor:
        weights, tokens = self.gate(x).softmax(-1).t().topk(2 * len(x) // EXPERTS)
        inner = torch.bmm(F.gelu(torch.bmm(x[tokens], self.up)), self.down) * weights[..., None]
        return torch.zeros_like(x).index_add(0, tokens.flatten(), inner.flatten(0, 1))


def test_experts_that_choose_their_tokens_are_not_computed_for_all() -> None:
    found = tg.analyze(ExpertsChoose(), inputs=torch.zeros(30, WIDTH), advice=False)
    assert found.totals.active_params == WIDTH * EXPERTS + 2 * 2 * WIDTH * INNER
    assert not any("all 6 experts" in warning for warning in found.capture.run.warnings)
