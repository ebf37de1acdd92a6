"""Activation functions written out in any form, and functions that only look like them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen
from torchgauge.advise import Advice

RULES = {"GELU": "gelu-by-hand", "SiLU": "silu-by-hand"}


class Acts(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: Tensor) -> Tensor:
        return self.function(a)


def found(function: Callable[[Tensor], Tensor]) -> list[Advice]:
    model = nn.Sequential(nn.Linear(16, 64), Acts(function), nn.Linear(64, 4)).eval()
    return [each for each in said(seen(model, inputs=(x(512, 16),))) if each.rule.endswith("-by-hand")]


FORMS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "paper": ("Hardswish", lambda a: a * functional.relu6(a + 3) / 6),
    "gate first": ("Hardswish", lambda a: a * (a / 6 + 0.5).clamp(0, 1)),
    "two bounds": ("Hardswish", lambda a: (a + 3).clamp(min=0).clamp(max=6) * (1 / 6) * a),
    "in place": ("Hardsigmoid", lambda a: functional.relu6(a + 3, inplace=True).div_(6)),
    "by slope": ("Hardsigmoid", lambda a: functional.hardtanh(0.5 + a * 0.16666667, 0.0, 1.0)),
    "softplus inside": ("Mish", lambda a: a * functional.softplus(a).tanh()),
    "by logarithm": ("Mish", lambda a: a * torch.tanh(torch.log(1 + torch.exp(a)))),
    "by exponential": ("SiLU", lambda a: a / (1 + torch.exp(-a))),
    "swish": ("SiLU", lambda a: a.sigmoid().mul(a)),
    "by erf": ("GELU", lambda a: a * 0.5 * (1.0 + torch.erf(a / math.sqrt(2.0)))),
    "by erfc": ("GELU", lambda a: 0.5 * a * torch.erfc(-a * 0.7071067811865476)),
    "by tanh": ("GELU", lambda a: a * (0.5 + 0.5 * (0.79788456 * a * (1 + 0.044715 * a * a)).tanh())),
    "by sigmoid": ("GELU", lambda a: a * torch.sigmoid(1.5957691216 * (a + 0.044715 * a**3))),
    "root as tensor": (
        "GELU",
        lambda a: 0.5 * a * (1 + torch.tanh(torch.sqrt(torch.tensor(2 / math.pi)) * (a + 0.044715 * a.pow(3)))),
    ),
    "softplus": ("Softplus", lambda a: torch.log1p(a.exp())),
    "sigmoid": ("Sigmoid", lambda a: 1 / (1 + torch.exp(-a))),
    "branches": ("LeakyReLU", lambda a: torch.where(a > 0, a, 0.01 * a)),
    "masked": ("ReLU", lambda a: a * (a > 0)),
    "elu": ("ELU", lambda a: torch.where(a > 0, a, a.exp() - 1)),
}


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_an_activation_is_found(form: str) -> None:
    name, function = FORMS[form]
    (advice,) = found(function)

    assert advice.rule == RULES.get(name, "activation-by-hand")
    assert advice.recommendation.startswith(f"use torch's {name}:")
    model = nn.Sequential(nn.Linear(16, 64), Acts(function), nn.Linear(64, 4)).eval()
    known: dict[str, Any] = {"torch": torch, "model": copy.deepcopy(model)}
    exec(str(advice.code), known)
    given = x(64, 16)
    assert type(known["model"][1]).__name__ == name
    torch.testing.assert_close(known["model"](given), model(given), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a * torch.sigmoid(1.702 * a),  # another function than GELU, which torch has no kernel for
        lambda a: a * functional.relu6(a + 2) / 6,
        lambda a: (a[:, :32] * torch.sigmoid(a[:, 32:])).repeat(1, 2),
        lambda a: a.roll(1, 0) * torch.sigmoid(a),
        lambda a: (0.5 * a + 1) * a,
        nn.Hardswish(),
        nn.Mish(),
        nn.Softplus(),
        nn.GELU(),
        nn.LeakyReLU(),
    ],
)
def test_other_functions_and_those_of_torch_are_left_alone(function: Callable[[Tensor], Tensor]) -> None:
    assert found(function) == []


def test_a_function_whose_kernel_is_not_faster_than_its_ops_promises_next_to_nothing() -> None:
    def mish(a: Tensor) -> Tensor:
        return a * functional.softplus(a).tanh()

    def hard_swish(a: Tensor) -> Tensor:
        return a * functional.relu6(a + 3) / 6

    def least(function: Callable[[Tensor], Tensor]) -> float:
        model = nn.Sequential(nn.Linear(128, 512), Acts(function), nn.Linear(512, 4)).eval()
        (advice,) = [each for each in said(seen(model, inputs=(x(512, 128),))) if each.rule == "activation-by-hand"]
        assert advice.expected_gain is not None
        return advice.expected_gain.low

    assert least(mish) < 0.01 < 0.03 < least(hard_swish)


class HardSigmoid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bound = nn.ReLU6()

    def forward(self, a: Tensor) -> Tensor:
        return self.bound(a + 3) / 6


class HardSwish(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = HardSigmoid()

    def forward(self, a: Tensor) -> Tensor:
        return a * self.gate(a)


def test_a_function_spread_over_modules_is_replaced_by_the_outermost() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), HardSwish(), nn.Conv2d(8, 8, 1), HardSigmoid()).eval()
    given = x(1, 3, 32, 32)
    shown = {each.where.module: each for each in said(seen(model, inputs=(given,))) if "by-hand" in each.rule}

    assert {path: advice.evidence["function"] for path, advice in shown.items()} == {
        "1": "Hardswish()",
        "3": "Hardsigmoid()",
    }
    known: dict[str, Any] = {"torch": torch, "model": copy.deepcopy(model)}
    for advice in shown.values():
        exec(str(advice.code), known)
    assert [type(each).__name__ for each in known["model"]] == ["Conv2d", "Hardswish", "Conv2d", "Hardsigmoid"]
    torch.testing.assert_close(known["model"](given), model(given))


class GatedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 64)

    def forward(self, a: Tensor) -> Tensor:
        return functional.relu6(self.fc(a) + 3) / 6


def test_an_edit_keeps_the_layer_inside_the_expression() -> None:
    (advice,) = [each for each in said(seen(GatedLayer().eval(), 64, 64)) if each.rule == "activation-by-hand"]

    assert advice.code is None or "self.fc(a)" in advice.code


def gelu(a: Tensor) -> Tensor:
    return 0.5 * a * (1 + torch.erf(a / math.sqrt(2)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, a: Tensor) -> Tensor:
        return self.down(gelu(self.up(a)))


class Shared(nn.Module):
    """A block that three rounds share, and a function that it and the model call."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.out = Block(), nn.Linear(32, 32)

    def forward(self, a: Tensor) -> Tensor:
        for _ in range(3):
            a = a + self.block(a)
        return gelu(self.out(a))


def test_one_edit_of_a_shared_function_covers_all_of_its_places() -> None:
    (advice,) = [each for each in said(seen(Shared().eval(), inputs=(x(512, 32),))) if each.rule == "gelu-by-hand"]

    assert advice.evidence["count"] == 4
    assert advice.code is not None
    assert "covers" not in advice.code
    assert "+    return functional.gelu(a, approximate='none')" in advice.code


def test_a_module_that_is_called_in_each_round_is_replaced() -> None:
    class Rounds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.mix = Acts(lambda a: a * torch.sigmoid(a)), nn.Linear(64, 64)

        def forward(self, a: Tensor) -> Tensor:
            for _ in range(3):
                a = self.act(self.mix(a))
            return a

    (advice,) = [each for each in said(seen(Rounds().eval(), inputs=(x(512, 64),))) if each.rule == "silu-by-hand"]

    assert advice.code is not None
    assert "for path in ['act']:" in advice.code
    assert "covers" not in advice.code


def test_a_line_that_has_a_function_twice_is_not_edited() -> None:
    def twice(a: Tensor) -> Tensor:
        return (a * torch.sigmoid(a)) * torch.sigmoid(a * torch.sigmoid(a))

    def both(a: Tensor) -> Tensor:
        b, c = a * torch.sigmoid(a), a * torch.sigmoid(a)
        return b.cumsum(0) - c

    def either(a: Tensor) -> Tensor:
        return a * torch.sigmoid(a) if a.ndim < 5 else a.relu()

    for function in (twice, both, either):
        model = Acts(lambda a, function=function: function(a).cumsum(-1)).eval()  # type: ignore[misc]
        assert all(each.code_kind != "edit" for each in said(seen(model, inputs=(x(512, 64),))))


def test_a_module_is_replaced_only_by_one_that_takes_its_place() -> None:
    """Not where its function calls layers that belong to another module, takes more than a tensor, or returns two."""

    class Pair(nn.Module):
        def forward(self, a: Tensor, scale: float = 1.0) -> tuple[Tensor, float]:
            return a * torch.sigmoid(a), scale

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.pair = nn.Linear(32, 128), nn.Linear(128, 32), Pair()
            self.outer = Acts(lambda a: self.down(gelu(self.up(a))))

        def forward(self, a: Tensor) -> Tensor:
            return self.pair(self.outer(a))[0]

    rules = {each.rule: each for each in said(seen(Model().eval(), inputs=(x(512, 32),)))}

    assert rules["gelu-by-hand"].code_kind == "edit"
    assert rules["silu-by-hand"].code is None


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_gate_that_is_transposed_is_not_that_of_its_own_place(is_turned: bool) -> None:
    def gated(m: Any, scores: Tensor) -> Tensor:
        scores = torch.tanh(scores)
        gate = torch.sigmoid(scores)
        return scores * (gate.transpose(1, 2) if is_turned else gate)

    rules = {advice.rule for advice in said(seen(Does(gated), inputs=(x(4, 100, 100),)))}
    assert ("silu-by-hand" in rules) is not is_turned


class Width(nn.Module):
    """A GELU whose width is a number of the code, a learned one, or one that the model keeps."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.kept, self.learned = kind, torch.tensor(0.3), nn.Parameter(torch.tensor(0.3))

    def forward(self, y: Tensor) -> Tensor:
        y = functional.hardtanh(y)
        widths = {"code": torch.sqrt(torch.tensor(2.0)), "kept": self.kept.abs(), "learned": self.learned.exp()}
        return 0.5 * y * (1 + torch.erf(y / widths[self.kind]))


@pytest.mark.parametrize(("kind", "is_gelu"), [("code", True), ("kept", False), ("learned", False)])
def test_a_number_that_the_model_keeps_or_learns_is_not_guessed(kind: str, is_gelu: bool) -> None:
    rules = {advice.rule for advice in said(seen(Width(kind), inputs=(x(64, 1000),)))}
    assert ("gelu-by-hand" in rules) is is_gelu
