"""Advice tried: on a model whose runs take as long as it says, on a clock that nothing else moves, or on a real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchgauge import analyze
from torchgauge.advise import Evidence, advise
from torchgauge.measure import Subject
from torchgauge.verify import (
    TRANSFORMATIONS,
    Applied,
    Bench,
    NotApplicableError,
    Side,
    Trial,
    compared,
    load_transformations,
    transformation,
)
from torchgauge.verify import verify as verify_typed

CPU = torch.device("cpu")


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def __deepcopy__(self, memo: Any) -> FakeClock:
        return self


class Timed(nn.Module):
    """One run takes `cost` seconds and gives its input times `factor`."""

    def __init__(self, clock: FakeClock, cost: float = 1.0) -> None:
        super().__init__()
        self.clock, self.cost = clock, cost
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        self.clock.now += self.cost
        return x * self.factor


def bench(model: nn.Module, *args: Any, clock: Any = None, train: bool = False, **kwargs: Any) -> Bench:
    mode = "train" if train else "inference"
    found = analyze(model, inputs=args or None, kwargs=kwargs or None, mode=mode, advice=False, progress=False)
    subject = Subject(model.train(train), args, kwargs, CPU)
    settings = {} if clock is None else {"clock": clock}
    return Bench(subject, found.capture, train, 20.0 if clock is not None else 0.02, **settings)


def timed_bench(cost: float = 1.0) -> Bench:
    clock = FakeClock()
    return bench(Timed(clock, cost).eval(), torch.arange(1.0, 5.0), clock=clock)


def verify(*args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
    """The rows and the plan without their types, which say that every figure may be missing."""
    return verify_typed(*args, **kwargs)


def row(rule: str, quantity: str = "time_s", module: str | None = "", **evidence: Any) -> Any:
    """Advice as in the document."""
    return {
        "rule": rule,
        "where": {"module": module, "ops": evidence.pop("ops", []), "weight": evidence.pop("weight", None)},
        "evidence": evidence,
        "recommendation": "do it",
        "code": evidence.pop("code", None),
        "expected_gain": {"quantity": quantity, "low": 0.1, "high": 0.2, "how": "said so"},
        "risk": "none",
        "confidence": "high",
        "verified": None,
    }


@contextmanager
def rule_with(name: str, code: str, **settings: Any) -> Iterator[None]:
    """A transformation that applies `code`, for as long as the block lasts."""

    def apply(trial: Trial) -> Applied:
        return Applied(code)

    load_transformations()
    transformation(name, **settings)(apply)
    try:
        yield
    finally:
        del TRANSFORMATIONS[name]


def advised(model: nn.Module, rule: str, *args: Any, **settings: Any) -> Any:
    """The advice of a rule on this model."""
    found = analyze(model, inputs=args, progress=False, advice=False, **settings)
    return next(a.member() for a in advise(Evidence(found.capture, found)) if a.rule == rule)


def applied(place: Bench, advice: Any) -> Applied:
    load_transformations()
    return TRANSFORMATIONS[advice["rule"]].apply(place.trial(advice))


def changed(place: Bench, advice: Any) -> Side:
    return place.changed([applied(place, advice)])


def apart(place: Bench, side: Side) -> float:
    error, _ = compared(place.original(), side, 0.0)
    assert error.relative is not None, error.reason
    return error.relative


def not_applicable(place: Bench, advice: dict[str, Any]) -> str:
    with pytest.raises(NotApplicableError) as caught:
        changed(place, advice)
    return str(caught.value)


def kinds(side: Side) -> list[str]:
    return [type(module).__name__ for module in side.subject.model.modules()]


def lively(model: nn.Module) -> nn.Module:
    """Running statistics and affine parameters that show whether they were used."""
    generator = torch.Generator().manual_seed(1)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point() and tensor.dim() == 1:
            tensor.data = torch.rand(tensor.shape, generator=generator) + 0.5
    return model.eval()


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))
