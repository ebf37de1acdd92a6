"""What the judges of the eighteenth set missed or found too small, and what hunters found in packages after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.planted import gain_of, seen
from tests.advise.test_public_models import of_rule
from torchgauge.advise.rules.attention import written_attentions

# --- the copies that a split layer no longer needs


def edges(self: Any, points: Tensor, near: Tensor) -> Tensor:
    """Differences to the neighbours beside the point itself, as in EdgeConv."""
    own = points[:, :, None].repeat(1, 1, near.shape[2], 1)
    pairs = torch.cat((near - own, own), 3).permute(0, 3, 1, 2).contiguous()
    return torch.relu(self.layer(pairs)).amax(3)


def edges_with_a_copy(self: Any, points: Tensor, near: Tensor) -> Tensor:
    own = points[:, :, None].repeat(1, 1, near.shape[2], 1)
    pairs = torch.cat((near - own, own), 3).permute(0, 3, 1, 2).contiguous()
    return torch.relu(self.layer(pairs)).amax(3) + own.flatten(2).cumsum(2).mean()


@pytest.mark.parametrize(("forward", "goes"), [(edges, True), (edges_with_a_copy, False)])
def test_copies_go_away_where_their_other_readers_broadcast(forward: Any, goes: bool) -> None:
    model = Does(forward, layer=nn.Conv2d(128, 64, 1, bias=False))
    (found,) = of_rule(model, "repeated-input", x(4, 256, 64), x(4, 256, 20, 64))
    ops = {op.index: op.op for op in of_run(model)}
    touched = {ops[index] for index in gain_of(found).touched or ()}
    assert {"aten::cat", "aten::clone"} <= touched  # the joined tensor, and its copy in the order of the convolution
    assert ("aten::repeat" in touched) is goes


def of_run(model: nn.Module) -> Any:
    from torchgauge import analyze

    return analyze(model, inputs=(x(4, 256, 64), x(4, 256, 20, 64)), advice=False, progress=False).capture.ops


# --- experts of medium size


@pytest.mark.parametrize(("rows", "is_said"), [(64, True), (256, False)])
def test_networks_of_which_calls_take_a_sixth_are_batched(rows: int, is_said: bool) -> None:
    """Four experts of 64 → 256 → 64: 21 % faster for 64 rows, and 8 % for 256 (one thread of an EPYC)."""

    def forward(self: Any, h: Tensor) -> Tensor:
        weights = self.gate(h).softmax(-1)
        made = torch.stack([expert(h) for expert in self.experts], 1)
        return (weights.unsqueeze(-1) * made).sum(1)

    experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4))
    model = Does(forward, gate=nn.Linear(64, 4), experts=experts)
    assert bool(of_rule(model, "parallel-linears", x(rows, 64))) is is_said


# --- what a hunter found in public models


def codebook_losses(self: Any, h: Tensor) -> Tensor:
    """Equal values, and gradients for the codes in one term, for the encoder in the other."""
    code = torch.softmax(self.layer(h), -1)
    loss = torch.mean((code.detach() - h) ** 2) + 0.25 * torch.mean((code - h.detach()) ** 2)
    return code + loss


def with_a_teacher(self: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        target = torch.tanh(self.layer(h))
    return torch.tanh(self.layer(h)) - target


def without_gradients(self: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        target = torch.tanh(self.layer(h))
        return target + torch.tanh(self.layer(h)).square()


@pytest.mark.parametrize(
    ("forward", "is_said"), [(codebook_losses, False), (with_a_teacher, False), (without_gradients, True)]
)
def test_work_that_gradients_cross_once_is_not_repeated(forward: Any, is_said: bool) -> None:
    model = Does(forward, layer=nn.Linear(256, 256)).eval()

    assert bool(of_rule(model, "repeated-work", x(512, 256))) is is_said


def drawn_classes(self: Any, h: Tensor) -> Tensor:
    """Its Categorical is not told of `validate_args`."""
    logits = self.layer(h)
    return torch.distributions.OneHotCategorical(logits=logits, validate_args=False).sample() + logits


def test_the_check_of_a_distribution_in_another_is_switched_off_for_all() -> None:
    (found,) = of_rule(Does(drawn_classes, layer=nn.Linear(32, 32)), "host-wait", x(8, 32))

    assert "Distribution.set_default_validate_args(False)" in found.recommendation


def test_many_idle_experts_are_grouped_by_the_modules_around_them() -> None:
    """One look at each of the paths around a parameter: 400 s for 6,000 modules when all were compared with all."""
    experts = nn.ModuleDict({f"e{i}": nn.Sequential(*(nn.Linear(2, 2) for _ in range(20))) for i in range(100)})

    def forward(self: Any, h: Tensor) -> Tensor:
        return self.parts.a.experts.e0(h)

    part = nn.Module()
    part.experts, part.rest = experts, nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    found = of_rule(Does(forward, parts=nn.ModuleDict({"a": part})), "unused-parameters", x(4, 2))

    assert [advice.where.module for advice in found] == ["parts.a.rest"]


# --- values that reach the next step through Python


def words(self: Any, first: Tensor, state: Tensor, cell: Tensor, feed: Any) -> Tensor:
    word, states, made = first, (state, cell), []
    for _ in range(12):
        output, states = self.lstm(self.embed(word), states)
        scores = self.head(output[:, -1])
        made.append(scores)
        word = feed(word, scores)
    return torch.stack(made, 1)


@pytest.mark.parametrize(
    ("feed", "is_said"),
    [
        (lambda _, scores: scores.argmax(-1, keepdim=True), False),
        (lambda _, scores: torch.from_numpy(scores.cpu().numpy().argmax(-1)[:, None]), False),
        (lambda _, scores: torch.tensor(scores.argmax(-1, keepdim=True).tolist()), False),
        (lambda word, _: word, True),
    ],
    ids=["a tensor", "an array", "a list", "the same word"],
)
def test_a_step_that_gets_a_word_through_python_needs_the_one_before(feed: Any, is_said: bool) -> None:
    model = Does(
        lambda self, first, state, cell: words(self, first, state, cell, feed),
        embed=nn.Embedding(500, 64), lstm=nn.LSTM(64, 128, batch_first=True), head=nn.Linear(128, 500),
    ).eval()  # fmt: skip
    given = torch.zeros(2, 1, dtype=torch.long), torch.zeros(1, 2, 128), torch.zeros(1, 2, 128)

    found = of_rule(model, "loop-over-steps", *given)

    assert any("whole sequence" in advice.recommendation for advice in found) is is_said


@pytest.mark.parametrize("read", [lambda y: y[0, 0].item(), lambda y: y[0, :8].tolist(), None])
def test_a_layer_whose_result_python_reads_is_not_merged(read: Any) -> None:
    def forward(self: Any, h: Tensor) -> Any:
        wide = self.first(h)
        return self.second(wide), read(wide) if read is not None else None

    model = Does(forward, first=nn.Linear(64, 256), second=nn.Linear(256, 16)).eval()

    assert bool(of_rule(model, "consecutive-layers", x(512, 64))) is (read is None)


# --- what hunters found in packages of another set


@pytest.mark.parametrize(("own_keys", "is_said"), [(True, False), (False, True)], ids=["neighbours", "all"])
def test_attention_to_keys_of_each_query_s_own_is_not_fused(own_keys: bool, is_said: bool) -> None:
    """With one query for each matrix of keys the scores are the smallest part: fused, it takes two to four times as
    long."""

    keys = "bhijd" if own_keys else "bhjd"

    def forward(self: Any, h: Tensor, near: Tensor) -> Tensor:
        scores = torch.einsum(f"bhid,{keys}->bhij", self.layer(h), near) * 0.25 + self.bias
        scores = scores.masked_fill(self.hidden, -1e9)
        return torch.einsum(f"bhij,{keys}->bhid", scores.softmax(-1), near)

    model = Does(forward, layer=nn.Linear(16, 16), bias=x(256, 256), hidden=x(256, 256) > 2).eval()
    given = x(1, 8, 256, 16), x(1, 8, 256, 256, 16) if own_keys else x(1, 8, 256, 16)

    assert bool(list(written_attentions(seen(model, inputs=given)))) is is_said


class Attends(nn.Module):
    """Queries do not need the memory, which the module reads as well."""

    def __init__(self) -> None:
        super().__init__()
        self.to_query, self.to_key, self.out = nn.Linear(256, 1024), nn.Linear(64, 1024), nn.Linear(1024, 64)

    def forward(self, h: Tensor, memory: Tensor) -> Tensor:
        query, key = self.to_query(h), self.to_key(memory)
        return torch.tanh(self.out(query * key))


def test_the_place_of_what_needs_no_state_is_not_a_module_that_reads_it() -> None:
    def forward(self: Any, h: Tensor) -> Tensor:
        memory = h.new_zeros(h.shape[0], 64)
        for step in h.unbind(1):
            memory = self.attends(step, memory)
        return memory

    (found,) = of_rule(Does(forward, attends=Attends()).eval(), "loop-over-steps", x(4, 64, 256))

    assert found.where.module == "attends.to_query"
    assert "query, key = self.to_query(h)" in (found.where.line or "")


def scan_by_levels(gates: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    if gates.shape[1] < 2:
        return gates, inputs
    even, odd = gates[:, ::2], gates[:, 1::2]
    made = scan_by_levels(even * odd, odd * inputs[:, ::2] + inputs[:, 1::2])
    between = [odd[:, 1:] * 0 + even[:, 1:] * part[:, :-1] for part in made]
    return tuple(
        torch.stack((torch.cat((first[:, :1], later), 1), part), 2).flatten(1, 2)
        for first, later, part in zip((gates, inputs), between, made, strict=True)
    )  # type: ignore[return-value]


def test_the_levels_of_a_parallel_scan_are_not_its_steps() -> None:
    model = Does(lambda self, h: sum(scan_by_levels(torch.sigmoid(self.gate(h)), h)), gate=nn.Linear(32, 32)).eval()

    assert not of_rule(model, "scan-in-python", x(4, 4096, 32))
