"""Parameters that one call does not read, but that the model's class has another use for."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import ids, x
from tests.advise.planted import said, seen
from torchgauge import analyze
from torchgauge.analysis import ModelInMemory, is_read_otherwise


def unused(model: nn.Module, *inputs: Any) -> list[str]:
    found = [advice for advice in said(seen(model, inputs=inputs)) if advice.rule == "unused-parameters"]
    return [str(advice.where.weight or advice.where.module) for advice in found]


class Autoencoder(nn.Module):
    """The decoder is for `generate`, the prior for `sample`, the spare layer for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.spare = (nn.Linear(32, 32) for _ in range(3))
        self.prior = nn.Parameter(torch.zeros(64, 32))
        self.init_weights()

    def init_weights(self) -> None:
        nn.init.xavier_uniform_(self.spare.weight)

    def forward(self, a: Tensor) -> Tensor:
        return self.encoder(a)

    def generate(self, code: Tensor) -> Tensor:
        return torch.tanh(self.decoder(code))

    def sample(self) -> Tensor:
        return self.generate(torch.randn_like(self.prior) * self.prior)


class Captioner(nn.Module):
    """Its `caption` runs layers of a part, one of them by a name that is put together, one inside a loop."""

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.look, self.head_0, self.head_1, self.left_out = (nn.Linear(16, 16) for _ in range(4))

        def forward(self, a: Tensor) -> Tensor:
            return self.look(a)

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.gate = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, a: Tensor) -> Tensor:
            return self.mix(a)

    def __init__(self) -> None:
        super().__init__()
        self.body, self.steps = self.Body(), nn.ModuleList(self.Step() for _ in range(2))
        self.words = nn.ModuleDict({"table": nn.Embedding(50, 16)})

    def forward(self, a: Tensor) -> Tensor:
        a = self.body(a)
        for step in self.steps:
            a = step(a)
        return a

    def caption(self, words: Tensor, number: int) -> Tensor:
        a = getattr(self.body, f"head_{number}")(self.words["table"](words))
        for step in self.steps:
            a = step.gate(a)  # type: ignore[operator]
        return a


class Translator(nn.Module):
    """The decoder runs where the caller gives a target; the head of an auxiliary loss in training; another head if the
    model was built for it."""

    def __init__(self, has_class: bool = False) -> None:
        super().__init__()
        self.has_class = has_class
        self.encoder, self.decoder, self.auxiliary, self.kind = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, source: Tensor, target: Tensor | None = None) -> Tensor:
        memory = self.encoder(source)
        if self.training and target is not None:
            memory = memory + self.auxiliary(target)
        if self.has_class:
            return self.kind(memory)
        if target is None:
            return memory
        return self.decode(memory, target)

    def decode(self, memory: Tensor, target: Tensor) -> Tensor:
        return self.decoder(memory + target)


class Bounded(nn.Module):
    """What lists, freezes, saves or hands out parameters does not use them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, a: Tensor) -> Tensor:
        return self.layer(a)

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def freeze(self, is_all: bool) -> None:
        for each in (self.head, self.layer) if is_all else (self.head,):
            each.requires_grad_(False)

    def optimizer_parameters(self, rate: float) -> list[dict[str, Any]]:
        return [{"params": self.head.parameters(), "lr": rate}]

    def describe(self, prefix: str) -> str:
        return f"{prefix}: {self.head.in_features} features"


@pytest.mark.parametrize(
    ("model", "inputs", "expected"),
    [
        (Autoencoder(), (x(4, 32),), ["spare"]),
        (Captioner(), (x(4, 16),), ["body.left_out"]),
        (Bounded(), (x(4, 32),), ["head"]),
    ],
    ids=["generate and sample", "caption", "parameters only"],
)
def test_only_what_no_other_method_reads_is_unused(
    model: nn.Module, inputs: tuple[Any, ...], expected: list[str]
) -> None:
    assert unused(model, *inputs) == expected


def test_what_other_arguments_lead_to_is_not_unused() -> None:
    is_read = ModelInMemory(Translator()).is_read_otherwise

    assert [is_read(name) for name in ("decoder", "auxiliary", "kind")] == [True, False, False]


def test_a_method_of_a_base_class_counts() -> None:
    class Base(nn.Module):
        def encode(self, a: Tensor) -> Tensor:
            return self.projection(a)  # type: ignore[operator]

    class Inner(Base):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.projection = nn.Embedding(50, 32), nn.Linear(32, 32)

        def forward(self, words: Tensor) -> Tensor:
            return self.table(words)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, words: Tensor) -> Tensor:
            return self.inner(words)

    assert unused(Outer(), ids(50, 4, 6)) == []


def test_a_class_whose_source_is_unknown_says_nothing() -> None:
    made = type("Made", (nn.Module,), {"forward": lambda self, a: a})

    assert not is_read_otherwise(made, "layer")


class Zeros(nn.Module):
    """A product with zeros that is added, or that something else is made of."""

    def __init__(self, use: str) -> None:
        super().__init__()
        self.use, self.body = use, nn.Linear(32, 32)
        self.zeros = nn.Linear(32, 32, bias=use == "bias")
        nn.init.zeros_(self.zeros.weight)

    def forward(self, h: Tensor) -> Tensor:
        made = self.zeros(torch.relu(self.body(h)))
        if self.use == "scores":
            return h + made.softmax(-1)
        return h * made.sigmoid() if self.use == "gate" else h + torch.relu(made)


@pytest.mark.parametrize(
    ("use", "words"), [("branch", ["nothing"]), ("bias", ["only its bias"]), ("scores", []), ("gate", [])]
)
def test_zeros_of_which_something_is_made_are_not_a_branch_that_adds_nothing(use: str, words: list[str]) -> None:
    found = analyze(Zeros(use).eval(), inputs=(x(4, 32),), weights=True, progress=False).advice
    said_of = [row.recommendation for row in found if row.rule == "zero-parameters"]
    assert [text.rpartition(" adds ")[2] for text in said_of] == words


def test_a_weight_of_a_layer_is_at_the_line_that_makes_the_layer() -> None:
    found = analyze(Zeros("branch").eval(), inputs=(x(4, 32),), weights=True, progress=False).advice
    (place,) = [row.where["source"] for row in found if row.rule == "zero-parameters"]

    assert place.startswith("test_unused.py:")


class Adapted(nn.Module):
    """Adapters of which a setting chooses one; the spare parameters are for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.active, self.spare = "speech", nn.ParameterList([torch.randn(32, 4) for _ in range(2)])
        self.down = nn.ParameterDict({name: torch.randn(32, 4) for name in ("speech", "music")})
        self.up = nn.ModuleDict({name: nn.ModuleList([nn.Linear(4, 32)]) for name in ("speech", "music")})

    def forward(self, a: Tensor) -> Tensor:
        up = cast(nn.ModuleList, self.up[self.active])[0]
        return a + up(a @ self.down[self.active])


def test_adapters_that_a_setting_chooses_are_not_idle() -> None:
    assert unused(Adapted(), x(8, 32)) == ["spare"]


class Chosen(nn.Module):
    """One of two layers, by what `picks` makes of the input."""

    def __init__(self, picks: str) -> None:
        super().__init__()
        self.picks, self.often, self.rare = picks, nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, a: Tensor) -> Tensor:
        if self.picks == "a setting":
            return self.often(a)
        if self.picks == "chance":
            return self.often(a) if torch.rand(()) < 2 else self.rare(a)
        largest = a.square().max()
        return self.rare(a) if largest > 1e6 else self.often(a)


@pytest.mark.parametrize("picks", ["chance", "the data"])
def test_a_layer_that_other_data_choose_is_not_idle(picks: str) -> None:
    assert unused(Chosen(picks), x(4, 16)) == []


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depth, self.often, self.rare = 1, nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, a: Tensor) -> Tensor:
        deep = self.depth > 1
        return self.rare(a) if deep else self.often(a)


def test_a_layer_that_a_setting_leaves_out_is_idle() -> None:
    assert unused(Configured(), x(4, 16)) == ["rare"]
