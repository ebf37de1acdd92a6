"""Lines about work done again, loops and joined parts that were wrong on models written as people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen
from torchgauge.advise import Advice


def of_rule(model: nn.Module, rule: str, *inputs: Any) -> list[Advice]:
    return [advice for advice in said(seen(model.eval(), inputs=inputs)) if advice.rule == rule]


# --- arguments that hold text, or numbers in a dictionary, are data


class Reads(nn.Module):
    """Adds to a tensor what it makes of the letters or lengths that it is given with it."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.layer = nn.Embedding(256, 64), nn.Linear(64, 64)

    def forward(self, a: Tensor, given: Any) -> Tensor:
        if isinstance(given, dict):
            mask = torch.arange(a.shape[1])[None] < torch.tensor(given["lengths"])[:, None]
            return self.layer(a * mask.float().unsqueeze(-1))
        words = given if isinstance(given, list) else [given]
        codes = torch.tensor([[ord(letter) % 256 for letter in word.ljust(32)] for word in words])
        return self.layer(a[:, :32] + torch.tanh(self.letters(codes)))


@pytest.mark.parametrize("given", [["one", "two"], "a line of text", {"lengths": [20, 128]}], ids=str)
def test_text_and_numbers_that_are_given_are_data(given: Any) -> None:
    found = {advice.rule for advice in said(seen(Reads().eval(), inputs=(x(2, 128, 64), given)))}

    assert found.isdisjoint({"recomputed-constant", "recomputed-weight"})


def test_a_word_alone_is_a_switch() -> None:
    def forward(self: Any, a: Tensor, mode: str) -> Tensor:
        at = torch.arange(a.shape[1]).float()[:, None] * torch.arange(64)
        return self.layer(a + at.sin()) if mode == "sum" else a

    assert of_rule(Does(forward, layer=nn.Linear(64, 64)), "recomputed-constant", x(2, 128, 64), "sum")


# --- a default that a function chooses


def default(given: Tensor | None, otherwise: Tensor) -> Tensor:
    return otherwise if given is None else given


class Queries(nn.Module):
    def __init__(self, is_fixed: bool) -> None:
        super().__init__()
        self.is_fixed, self.queries = is_fixed, nn.Parameter(x(64, 64))
        self.to_query, self.layer = nn.Linear(64, 64), nn.Linear(64, 64)


class GivenQueries(Queries):
    def forward(self, a: Tensor, queries: Tensor | None = None) -> Tensor:
        wanted = default(queries, self.queries)
        return torch.softmax(self.to_query(wanted) @ self.layer(a).mT, -1) @ a


class OwnQueries(Queries):
    def forward(self, a: Tensor, queries: Tensor | None = None) -> Tensor:
        wanted = default(None, self.queries)
        return torch.softmax(self.to_query(wanted) @ self.layer(a).mT, -1) @ a


@pytest.mark.parametrize(("model", "is_named"), [(GivenQueries, False), (OwnQueries, True)])
def test_what_a_caller_may_give_is_not_a_constant(model: Callable[[bool], nn.Module], is_named: bool) -> None:
    assert bool(of_rule(model(is_named), "recomputed-weight", x(64, 64))) == is_named


# --- tensors that are the same in evaluation alone


class Noise(nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        return a + 0.1 * torch.randn_like(a) if self.training else a


class Compares(nn.Module):
    """Runs its network on its input and on what `other` makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.noise, self.net = Noise(), nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


class NoiseOfLayer(Compares):
    def forward(self, a: Tensor) -> Tensor:
        one, two = self.noise(a), self.noise(a)
        return F.mse_loss(self.net(one), self.net(two))


class NoiseOfMethod(Compares):
    def disturbed(self, a: Tensor) -> Tensor:
        return a + torch.randn_like(a) if self.training else a

    def forward(self, a: Tensor) -> Tensor:
        clean = self.net(a)
        other = self.disturbed(a)
        return F.mse_loss(clean, self.net(other))


class NoiseInBranch(Compares):
    def forward(self, a: Tensor) -> Tensor:
        other = a
        if self.training:
            other = a + torch.randn_like(a)
        clean = self.net(a)
        return F.mse_loss(clean, self.net(other))


class NoiseBefore(Compares):
    """Both runs read one variable."""

    def forward(self, a: Tensor) -> Tensor:
        a = self.noise(a)
        first = self.net(a).exp()
        return first - self.net(a)


class OtherName(Compares):
    def forward(self, a: Tensor) -> Tensor:
        other = a
        first = self.net(a).exp()
        return first - self.net(other)


@pytest.mark.parametrize(
    ("model", "is_named"),
    [(NoiseOfLayer, False), (NoiseOfMethod, False), (NoiseInBranch, False), (NoiseBefore, True), (OtherName, True)],
)
def test_runs_that_differ_in_training_are_not_repeated(model: Callable[[], nn.Module], is_named: bool) -> None:
    assert bool(of_rule(model(), "repeated-work", x(64, 64))) == is_named


# --- parts that are joined without a loop, or in an order that is given


def heads(self: Any, a: Tensor) -> Tensor:
    return torch.cat(torch.split(self.layer(a), 8, dim=2), dim=0)


def heads_one_by_one(self: Any, a: Tensor) -> Tensor:
    h = self.layer(a)
    return torch.cat([h[:, :, 8 * at : 8 * at + 8] for at in range(8)], dim=0)


@pytest.mark.parametrize(("forward", "is_named"), [(heads, False), (heads_one_by_one, True)])
def test_a_split_is_no_loop_over_parts(forward: Callable[[Any, Tensor], Tensor], is_named: bool) -> None:
    assert bool(of_rule(Does(forward, layer=nn.Linear(64, 64)), "joined-parts", x(16, 48, 64))) == is_named


@pytest.mark.parametrize("is_given", [True, False])
def test_an_order_that_is_given_is_not_known(is_given: bool) -> None:
    def forward(self: Any, a: Tensor, *order: Any) -> Tensor:
        h = self.layer(a)
        return torch.stack([h[:, at] for at in (order[0] if order else range(11, -1, -1))], 1)

    given = ([3, 1, 2, 0, 5, 4, 7, 6, 11, 10, 9, 8],) if is_given else ()
    assert bool(of_rule(Does(forward, layer=nn.Linear(64, 64)), "joined-parts", x(16, 12, 64), *given)) != is_given


# --- a window of what has grown


@pytest.mark.parametrize(("window", "is_named"), [(1, True), (12, False)])
def test_a_window_of_a_grown_tensor_cannot_be_had_from_a_list(window: int, is_named: bool) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        for _ in range(16):
            a = torch.cat([a, self.layer(a[:, -window:])], 1)
        return a

    assert bool(of_rule(Does(forward, layer=nn.Linear(window, 1)), "grown-by-cat", x(64, 256))) == is_named


# --- loops of so many ops that their code cannot be compiled in minutes


@pytest.mark.parametrize(("steps", "is_named"), [(64, True), (2000, False)])
def test_a_very_long_loop_is_not_to_be_compiled(steps: int, is_named: bool) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        h, state, found = self.layer(a), torch.zeros(a.shape[0], 8), list[Tensor]()
        for at in range(h.shape[1]):
            state = torch.clamp(0.9 * state + h[:, at], -1, 1)
            found.append(state)
        return torch.stack(found, 1)

    assert bool(of_rule(Does(forward, layer=nn.Linear(8, 8)), "scan-in-python", x(1, steps, 8))) == is_named


# --- statistics of frames that are done one by one


@pytest.mark.parametrize("has_norm", [True, False])
def test_the_statistics_of_all_rounds_are_a_risk_in_training(has_norm: bool) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        return torch.stack([self.net(a[:, at]).mean((2, 3)) for at in range(a.shape[1])], 1)

    norm = nn.BatchNorm2d(8) if has_norm else nn.Tanh()
    net = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU())
    [found] = of_rule(Does(forward, net=net), "loop-over-samples", x(1, 16, 3, 8, 8))

    assert ("batch norms" in found.risk) == has_norm


# --- a cell that adds its input as it is


@pytest.mark.parametrize("is_multiplied", [True, False])
def test_a_layer_of_torch_multiplies_its_input(is_multiplied: bool) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        h, found = torch.zeros(a.shape[0], 64), list[Tensor]()
        given = self.inner(a) if is_multiplied else a
        for at in range(a.shape[1]):
            h = torch.tanh(given[:, at] + self.outer(h))
            found.append(h)
        return torch.stack(found, 1)

    model = Does(forward, inner=nn.Linear(64, 64), outer=nn.Linear(64, 64))
    found = [advice.recommendation for advice in of_rule(model, "loop-over-steps", x(4, 32, 64))]

    assert any("torch.nn.RNN" in words for words in found) == is_multiplied


@pytest.mark.parametrize(("row", "is_constant"), [(torch.tensor(5), False), (None, True)])
def test_a_row_of_a_table_that_an_input_chooses_is_no_constant(row: Tensor | None, is_constant: bool) -> None:
    """Torch takes an index without dimensions as a number."""

    def forward(self: Any, a: Tensor, row: Tensor | None = None) -> Tensor:
        return self.out(a) * self.embed(torch.sin(self.table[0 if row is None else row]))

    parts = {"out": nn.Linear(256, 256), "embed": nn.Linear(4096, 256), "table": nn.Parameter(torch.rand(100, 4096))}
    given = (x(4, 256),) if row is None else (x(4, 256), row)
    shown = {advice.rule for advice in said(seen(Does(forward, **parts).eval(), inputs=given))}
    assert ("recomputed-weight" in shown) is is_constant
