"""Loops over tables, samples and lengths, and what the host waits for in them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, ids, x
from tests.advise.planted import gain_of, said, seen
from tests.advise.test_words import lines_before_code
from torchgauge.advise import Advice


def advised(model: nn.Module, *inputs: Any, rule: str) -> list[Advice]:
    found = [advice for advice in said(seen(model, inputs=inputs)) if advice.rule == rule]
    for advice in found:
        assert len(lines_before_code(advice)) <= 3
    return found


def looked_up(self: Any, columns: Tensor) -> Tensor:
    return torch.cat([table(columns[:, at]) for at, table in enumerate(self.tables)], -1)


def joined(self: Any, columns: Tensor) -> Tensor:
    return self.table(columns + self.offsets).flatten(1)


def test_tables_of_one_width_are_joined() -> None:
    tables = nn.ModuleList(nn.Embedding(8, 16) for _ in range(12))
    [found] = advised(Does(looked_up, tables=tables), ids(32, 12), rule="parallel-linears")

    assert found.recommendation.startswith("join these tables")
    assert found.evidence["rounds"] == 12
    one = Does(joined, table=nn.Embedding(96, 16), offsets=8 * torch.arange(12))
    assert not advised(one, ids(32, 12), rule="parallel-linears")
    uneven = nn.ModuleList(nn.Embedding(8, 4 + at) for at in range(12))
    assert not advised(Does(looked_up, tables=uneven), ids(32, 12), rule="parallel-linears")


def test_rows_of_each_sample_are_reduced_at_once() -> None:
    def forward(self: Any, h: Tensor, *rows: Tensor) -> Tensor:
        h = self.fc(h)
        return torch.stack([h[own].mean(0) for own in rows])

    def at_once(self: Any, h: Tensor, sample: Tensor) -> Tensor:
        return torch.zeros(8, 16).index_add(0, sample, self.fc(h)) / 10

    rows = [torch.arange(10 * at, 10 * at + 10) for at in range(8)]
    [found] = advised(Does(forward, fc=nn.Linear(16, 16)), x(80, 16), *rows, rule="loop-over-samples")

    assert found.recommendation.startswith("use index_add or scatter_reduce")

    def gathers(self: Any, h: Tensor, *rows: Tensor) -> Tensor:
        h = self.fc(h)
        return torch.stack([h[own] for own in rows])

    [gather] = advised(Does(gathers, fc=nn.Linear(16, 16)), x(80, 16), *rows, rule="loop-over-samples")
    assert gather.recommendation.startswith("do this once for the whole tensor")
    sample = torch.arange(80) // 10
    assert not advised(Does(at_once, fc=nn.Linear(16, 16)), x(80, 16), sample, rule="loop-over-samples")


def rounds(self: Any, h: Tensor, lengths: Tensor) -> Tensor:
    for _ in range(int(lengths.max())):
        h = self.fc(h)
    return h


def cut(self: Any, h: Tensor, lengths: Tensor) -> Tensor:
    longest = lengths.max().item()
    kept = longest + 1
    return self.fc(h[:, :kept])


def kept_for_another(self: Any, h: Tensor, lengths: Tensor) -> Tensor:
    self.sizes = lengths.cumsum(0)[-1].item()
    return later(self, h)


def later(self: Any, h: Tensor) -> Tensor:
    return self.fc(h).split(self.sizes)[0]


def scaled(self: Any, h: Tensor, lengths: Tensor) -> Tensor:
    h = self.fc(h) * lengths.max().item()
    for at in range(h.shape[0]):
        h = h + at
    return h


@pytest.mark.parametrize("forward", [rounds, cut, kept_for_another, scaled])
def test_a_line_that_brings_a_length_to_the_host_is_named(forward: Any) -> None:
    found = advised(Does(forward, fc=nn.Linear(16, 16)), x(4, 12, 16), torch.tensor([3, 4, 5, 6]), rule="host-wait")
    assert [advice.recommendation.partition(" in forward")[0] for advice in found] in (
        ["avoid .item()"],
        ["avoid int()"],
    )


class Experts(nn.Module):
    """Four experts; `sorts`: their tokens are looked for once, not for each of them."""

    def __init__(self, sorts: bool) -> None:
        super().__init__()
        self.router, self.sorts = nn.Linear(16, 4), sorts
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, h: Tensor) -> Tensor:
        chosen, out = self.router(h).argmax(-1), torch.zeros_like(h)
        if not self.sorts:
            for number, expert in enumerate(self.experts):
                rows = torch.nonzero(chosen == number).squeeze(-1)
                out[rows] = expert(h[rows])
            return out
        gates = torch.nn.functional.one_hot(chosen, 4)
        pairs = torch.nonzero(gates.T)
        parts = pairs[:, 1].split([len(h) // 4] * 4)
        for rows, expert in zip(parts, self.experts, strict=True):
            out[rows] = expert(h[rows])
        return out


@pytest.mark.parametrize(("sorts", "remedy"), [(False, "sort tokens by expert"), (True, "avoid nonzero")])
def test_experts_whose_tokens_are_sorted_need_no_sorting(sorts: bool, remedy: str) -> None:
    found = advised(Experts(sorts), x(64, 16), rule="host-wait")
    if sorts and not found:
        pytest.fail("nonzero makes the host wait")
    assert {advice.recommendation.startswith(remedy) for advice in found} == {True}


class GroupedAttention(nn.Module):
    """Two heads of keys and values for eight of queries, written out."""

    def __init__(self, repeats: int) -> None:
        super().__init__()
        self.repeats = repeats
        self.q, self.k, self.v = nn.Linear(64, 64), nn.Linear(64, 64 // repeats), nn.Linear(64, 64 // repeats)

    def heads(self, h: Tensor) -> Tensor:
        return h.view(*h.shape[:2], -1, 8)

    def repeated(self, h: Tensor) -> Tensor:
        batch, tokens, heads, size = h.shape
        wide = h[:, :, :, None].expand(batch, tokens, heads, self.repeats, size)
        return wide.reshape(batch, tokens, heads * self.repeats, size).transpose(1, 2)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.heads(self.q(h)).transpose(1, 2), self.heads(self.k(h)), self.heads(self.v(h))
        scores = q @ self.repeated(k).mT / 8**0.5
        return scores.softmax(-1) @ self.repeated(v)


def test_attention_by_hand_with_repeated_keys_shares_them() -> None:
    def words(repeats: int) -> str:
        [found] = advised(GroupedAttention(repeats), x(2, 128, 64), rule="attention-by-hand")
        return found.recommendation

    assert "enable_gqa=True" in words(4)
    assert "enable_gqa" not in words(1)
    # One piece of advice for the copies in front of the products.
    assert not advised(GroupedAttention(4), x(2, 128, 64), rule="needless-copy")


def test_one_hot_rows_of_a_recurrent_layer_are_an_embedding() -> None:
    def forward(self: Any, items: Tensor) -> Tensor:
        rows = self.rows.zero_()
        return self.layer(rows.scatter_(1, items[:, None], 1)[None])[0]

    def embedded(self: Any, items: Tensor) -> Tensor:
        return self.layer(self.table(items)[None])[0]

    for kind in (nn.GRU, nn.LSTM):
        parts: dict[str, Any] = {"layer": kind(2000, 32), "rows": torch.zeros(16, 2000)}
        [found] = advised(Does(forward, **parts), ids(16), rule="one-hot-product")
        assert found.recommendation.startswith("give this layer an embedding in place of one-hot rows")
        table = Does(embedded, layer=kind(64, 32), table=nn.Embedding(2000, 64))
        assert not advised(table, ids(16), rule="one-hot-product")


def test_real_and_imaginary_parts_are_two_tensors() -> None:
    def forward(self: Any, h: Tensor) -> Tensor:
        z = torch.fft.rfft(self.fc(h))
        return z.real * self.scale + z.imag * self.scale

    model = Does(forward, fc=nn.Linear(64, 64), scale=nn.Parameter(torch.ones(33)))
    assert not advised(model, x(64, 64), rule="repeated-work")


def test_permutes_around_a_scan_in_place_are_needed() -> None:
    def forward(_: Any, h: Tensor) -> Tensor:
        h = h.transpose(1, 2).contiguous()
        pairs = h.view(h.shape[0], h.shape[1], -1, 2)
        pairs[..., 1].mul_(pairs[..., 0])
        return torch.relu(h.transpose(1, 2).contiguous())

    def pointwise(_: Any, h: Tensor) -> Tensor:
        h = torch.tanh(torch.exp(h).transpose(1, 2).contiguous())
        return torch.relu(h.transpose(1, 2).contiguous())

    assert not advised(Does(lambda self, h: forward(self, h + 1)), x(4, 64, 64), rule="cancelling-permutes")
    assert advised(Does(pointwise), x(4, 64, 64), rule="cancelling-permutes")


@pytest.mark.parametrize(("width", "rows", "is_said"), [(24, 8, True), (256, 128, False)], ids=["small", "large"])
def test_experts_are_batched_where_their_calls_take_the_time(width: int, rows: int, is_said: bool) -> None:
    """With large products, torch.bmm gains nothing."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(width, 8)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(8)
            )

        def forward(self, h: Tensor) -> Tensor:
            weights, total = self.gate(h).softmax(-1), torch.zeros_like(h)
            for number, expert in enumerate(self.experts):
                total = total + weights[..., number : number + 1] * expert(h)
            return total

    rules = {advice.rule for advice in said(seen(Experts(), rows, width))}
    assert ("parallel-linears" in rules) == is_said


def columns(self: Any, h: Tensor) -> Tensor:
    return torch.cat([torch.relu(layer(h[:, at])) for at, layer in enumerate(self.layers)])


def columns_of_own_lengths(self: Any, h: Tensor) -> Tensor:
    return torch.cat([torch.relu(layer(h[: self.rows[at], at])) for at, layer in enumerate(self.layers)])


@pytest.mark.parametrize(
    ("forward", "rows", "is_said"),
    [
        (columns, [], True),
        (columns_of_own_lengths, [8] * 6 + [6] * 6, False),
        (columns_of_own_lengths, [8] * 12, False),
    ],
)
def test_parts_of_different_sizes_do_not_fit_one_batched_product(forward: Any, rows: list[int], is_said: bool) -> None:
    model = Does(forward, layers=nn.ModuleList(nn.Linear(32, 32) for _ in range(12)), rows=rows)
    found = said(seen(model, inputs=(x(8, 12, 32),)))

    assert any("torch.bmm" in advice.recommendation for advice in found) is is_said


def team(self: Any, seen: Tensor) -> Tensor:
    """Agents with a network each, over the steps of a game."""
    out = []
    for step in seen:
        made = [torch.relu(agent(step[:, at])) for at, agent in enumerate(self.agents)]
        out.append(torch.stack(made, 1))
    return torch.stack(out)


@pytest.mark.parametrize("steps", [1, 2, 12])
def test_a_loop_that_another_loop_runs_is_counted_in_each_of_its_steps(steps: int) -> None:
    agents = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))
    evidence = seen(Does(team, agents=agents), inputs=(x(steps, 4, 8, 16),))
    [found] = [advice for advice in said(evidence) if advice.rule == "parallel-linears"]
    layers = {op.index for op in evidence.forward if op.op == "aten::addmm"}

    assert len(layers) == 8 * steps
    assert layers <= (gain_of(found).touched or frozenset())


def test_products_that_get_more_rows_gain_more_than_those_that_become_more() -> None:
    """A loop over samples of a few rows: with one weight a product of all rows, with one for each many products."""

    def in_turn(self: Any, h: Tensor) -> Tensor:
        return torch.stack([self.layers[at % len(self.layers)](each) for at, each in enumerate(h)])

    gains = []
    for layers, rule in ((1, "loop-over-samples"), (12, "parallel-linears")):
        model = Does(in_turn, layers=nn.ModuleList(nn.Linear(64, 96) for _ in range(layers)))
        [found] = advised(model, x(12, 2, 64), rule=rule)
        gains.append(gain_of(found))

    assert gains[0].low > gains[1].low


# --- rounds that cannot be done at once


def attended(self: Any, h: Tensor) -> Tensor:
    found = []
    for part in h.split(self.sizes):
        part = self.fc(part)
        found.append(torch.softmax(part @ part.T, -1) @ part)
    return torch.cat(found)


def test_parts_of_different_sizes_are_joined_for_the_layer_alone() -> None:
    even = Does(attended, fc=nn.Linear(16, 16), sizes=[8] * 6)
    uneven = Does(attended, fc=nn.Linear(16, 16), sizes=[5, 9, 12, 6, 7, 9])

    [found] = advised(even, x(48, 16), rule="loop-over-samples")
    assert "torch.bmm" in found.recommendation
    [other] = advised(uneven, x(48, 16), rule="loop-over-samples")
    assert other.recommendation.startswith("do this once for the whole tensor")
    assert gain_of(other).high < gain_of(found).high / 2


def test_rounds_with_statistics_of_their_own_stay_apart() -> None:
    def forward(self: Any, h: Tensor) -> Tensor:
        return torch.stack([self.norm(self.fc(each)) for each in h])

    model = Does(forward, fc=nn.Linear(16, 16), norm=nn.BatchNorm1d(16))
    rules = {
        mode: {each.rule for each in said(seen(model, inputs=(x(8, 12, 16),), mode=mode))}
        for mode in ("inference", "train")
    }

    assert "loop-over-samples" in rules["inference"]
    assert "loop-over-samples" not in rules["train"]


def test_a_value_may_choose_another_layer_for_a_sample() -> None:
    def forward(self: Any, h: Tensor) -> Tensor:
        return torch.stack([self.fc(each) if each.sum() > -1e9 else self.other(each) for each in h])

    model = Does(forward, fc=nn.Linear(16, 16), other=nn.Linear(16, 16))

    assert not advised(model, x(8, 12, 16), rule="loop-over-samples")


def test_tiles_of_an_image_have_borders() -> None:
    def forward(self: Any, h: Tensor) -> Tensor:
        return torch.cat([self.conv(tile) for tile in h.chunk(4, self.axis)], self.axis)

    tiles, samples = (Does(forward, conv=nn.Conv2d(3, 4, 3, padding=1), axis=axis) for axis in (2, 0))

    [found] = advised(tiles, x(4, 3, 16, 16), rule="loop-over-samples")
    assert "joined along the batch" in found.recommendation
    [other] = advised(samples, x(4, 3, 16, 16), rule="loop-over-samples")
    assert "the whole tensor" in other.recommendation


def test_convolutions_of_parts_become_one_with_groups() -> None:
    def forward(self: Any, h: Tensor) -> Tensor:
        return torch.cat([conv(part) for conv, part in zip(self.convs, h.chunk(4, 1), strict=True)], 1)

    model = Does(forward, convs=nn.ModuleList(nn.Conv1d(8, 8, 3, padding=1) for _ in range(4)))
    [found] = advised(model, x(4, 32, 24), rule="parallel-linears")

    assert "groups=4" in found.recommendation


def test_rounds_that_the_host_decides_on_stay_a_loop() -> None:
    def matched(self: Any, a: Tensor, targets: Tensor) -> Tensor:
        costs, total = torch.cdist(self.layer(a), targets), torch.zeros(())
        for sample in range(len(a)):
            order = costs[sample].detach().cpu().numpy().min(1).argsort()
            total = total + costs[sample][torch.as_tensor(order), 0].sum()
        return total

    model = Does(matched, layer=nn.Linear(64, 4))
    found = {advice.rule for advice in said(seen(model, inputs=(x(4, 8, 64), x(4, 8, 4))))}

    assert "loop-over-samples" not in found


@pytest.mark.parametrize("chance", [0.5, None])
def test_dropout_in_front_of_each_layer_is_a_risk_of_joining_them(chance: float | None) -> None:
    def ensemble(self: Any, a: Tensor) -> Tensor:
        return torch.stack([layer(self.rest(a)) for layer in self.layers]).mean(0)

    rest = nn.Identity() if chance is None else nn.Dropout(chance)
    model = Does(ensemble, rest=rest, layers=nn.ModuleList(nn.Linear(32, 8) for _ in range(6)))
    (advice,) = [each for each in said(seen(model, inputs=(x(16, 32),))) if each.rule == "parallel-linears"]

    assert ("dropout" in advice.risk) is (chance is not None)
