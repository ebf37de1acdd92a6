"""What only the first call of a model computes is not advice, however the code keeps it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from torchgauge import analyze, load

TOKENS = 128


def distances(size: int) -> Tensor:
    at = torch.arange(size)
    return (at[:, None] - at[None, :]).abs().float().neg().exp()


def at_first_use(self: Any, size: int) -> Tensor:
    if self.kept is None:
        self.kept = distances(size)
    return self.kept


def by_size(self: Any, size: int) -> Tensor:
    if size not in self.by_size:
        self.by_size[size] = distances(size)
    return self.by_size[size]


def returned_early(self: Any, size: int) -> Tensor:
    if self.kept is not None and self.kept.shape[0] >= size:
        return self.kept[:size, :size]
    at = torch.arange(size)
    made = (at[:, None] - at[None, :]).abs().float().neg().exp()
    self.kept = made
    return made


def after_an_error(self: Any, size: int) -> Tensor:
    try:
        return self.by_size[size]
    except KeyError:
        return self.by_size.setdefault(size, distances(size))


def with_an_attribute(self: Any, size: int) -> Tensor:
    if not hasattr(self, "late"):
        self.register_buffer("late", distances(size), persistent=False)
    return self.late


@functools.lru_cache
def remembered(size: int) -> Tensor:
    return distances(size)


shared: dict[int, Tensor] = {}


def in_a_global(_: Any, size: int) -> Tensor:
    made = shared.get(size)
    if made is None:
        made = shared[size] = distances(size)
    return made


def every_time(_: Any, size: int) -> Tensor:
    return distances(size)


def every_time_into_an_attribute(self: Any, size: int) -> Tensor:
    self.kept = distances(size)
    return self.kept


def mixing(table: Callable[[Any, int], Tensor]) -> nn.Module:
    def forward(self: Any, h: Tensor) -> Tensor:
        return self.fc(table(self, h.shape[1]) @ h)

    model = Does(forward, fc=nn.Linear(16, 16))
    vars(model).update(kept=None, by_size={})
    return model


def rules_of(model: nn.Module, *inputs: Any, **settings: Any) -> set[str]:
    return {row.rule for row in analyze(model.eval(), inputs=inputs, progress=False, **settings).advice}


KEEPING = [
    at_first_use, by_size, returned_early, after_an_error, with_an_attribute, lambda _, size: remembered(size),
    in_a_global,
]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "mode"), [*((table, "inference") for table in KEEPING), (by_size, "train"), (returned_early, "train")]
)
def test_a_table_that_is_kept_is_made_once(table: Callable[[Any, int], Tensor], mode: str) -> None:
    shared.clear()
    remembered.cache_clear()
    assert "recomputed-constant" not in rules_of(mixing(table), x(2, TOKENS, 16), mode=mode)


@pytest.mark.parametrize("table", [every_time, every_time_into_an_attribute])
def test_a_table_that_is_made_anew_is_not(table: Callable[[Any, int], Tensor]) -> None:
    assert "recomputed-constant" in rules_of(mixing(table), x(2, TOKENS, 16))


def test_what_a_second_call_left_out_is_saved(tmp_path: Any) -> None:
    found = analyze(mixing(at_first_use).eval(), inputs=x(2, TOKENS, 16), progress=False)
    once = found.capture.run.first_call_ops
    assert {found.capture.ops[index].op for index in once} >= {"aten::arange", "aten::exp"}
    assert not {found.capture.ops[index].op for index in once} & {"aten::addmm", "aten::bmm"}

    found.save(tmp_path / "a.json")
    assert load(tmp_path / "a.json").capture.run.first_call_ops == once
    plain = analyze(mixing(every_time).eval(), inputs=x(2, TOKENS, 16), progress=False)
    assert plain.capture.run.first_call_ops == ()


def test_what_depends_on_the_inputs_is_not_taken_for_kept() -> None:
    """A stale result is a fault of another kind: its time is part of the run."""

    def forward(self: Any, h: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = torch.relu(self.fc(h)).clone()
        return self.kept + h

    model = Does(forward, fc=nn.Linear(256, 256))
    vars(model).update(kept=None)
    assert "needless-copy" in rules_of(model, x(64, 256))


@pytest.mark.parametrize(
    "number",
    [
        lambda h: torch.as_tensor(h.shape[1:]).tolist()[0],
        lambda h: int(torch.tensor(h.shape).prod().item()),
        lambda h: int(torch.full((2,), h.shape[1]).max()),
        lambda h: torch.arange(4).cpu().numpy()[3],
    ],
)
def test_the_host_does_not_wait_for_its_own_numbers(number: Callable[[Tensor], int]) -> None:
    model = Does(lambda self, h: self.fc(h) * number(h), fc=nn.Linear(16, 16))
    assert "host-wait" not in rules_of(model, x(2, TOKENS, 16), all_advice=True)


@pytest.mark.parametrize(
    "number",
    [
        lambda self, h: self.fc(h).cpu().numpy().shape[0],
        lambda self, h: h.tolist()[0][0][0],
        lambda self, h: self.fc.bias.cpu().shape[0],
        lambda self, h: float(h.sum()),
    ],
)
def test_the_host_waits_for_values_of_the_device(number: Callable[[Any, Tensor], float]) -> None:
    model = Does(lambda self, h: self.fc(h) * number(self, h), fc=nn.Linear(16, 16))
    assert "host-wait" in rules_of(model, x(2, 4, 16), all_advice=True)
