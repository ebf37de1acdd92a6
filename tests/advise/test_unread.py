"""Work whose result nothing reads, and its healthy twins: results that somebody may still read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge
from tests.advise.fault_classes import Does, x


def found_in(model: nn.Module, *inputs: Tensor) -> list[Any]:
    analysis = torchgauge.analyze(model.eval(), inputs=inputs, all_advice=True)
    return [row for row in analysis.advice if row["rule"] == "unread-result"]


def overwritten(self: Any, a: Tensor) -> Tensor:
    h = self.enrich(a)
    h = self.norm(a)
    return self.out(h)


def not_taken(self: Any, a: Tensor) -> Tensor:
    q, k, v = self.q(a), self.k(a), self.v(a)
    return mixed(q, k, v)


def mixed(q: Tensor, _: Tensor, __: Tensor) -> Tensor:
    """As a block in the frequency domain, which has the arguments of attention and reads the queries alone."""
    return torch.fft.irfft(torch.fft.rfft(q, dim=1), dim=1)


def last_skip(self: Any, a: Tensor) -> Tensor:
    skips = torch.zeros_like(a)
    for layer, skip in zip(self.layers, self.skips, strict=True):
        skips = skips + skip(a)
        a = torch.tanh(layer(a)) + a
    return skips


@pytest.mark.parametrize(
    ("model", "given", "modules"),
    [
        (
            Does(
                overwritten,
                enrich=nn.Sequential(nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 64)),
                norm=nn.LayerNorm(64),
                out=nn.Linear(64, 64),
            ),
            x(8, 32, 64),
            {"enrich"},
        ),
        (
            Does(not_taken, q=nn.Linear(64, 64), k=nn.Linear(64, 64), v=nn.Linear(64, 64)),
            x(8, 32, 64),
            {"k", "v"},
        ),
        (
            Does(
                last_skip,
                layers=nn.ModuleList(nn.Conv1d(16, 16, 3, padding=1) for _ in range(3)),
                skips=nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(3)),
            ),
            x(4, 16, 200),
            {"layers.2"},
        ),
    ],
    ids=["overwritten", "projections", "the last layer of a stack"],
)
def test_work_that_leads_to_nothing_is_found(model: nn.Module, given: Tensor, modules: set[str]) -> None:
    (found,) = found_in(model, given)

    places = found["evidence"].get("places") or [found["where"]]
    assert {place["module"] for place in places} == modules
    assert found["where"]["source"].startswith("test_unread.py:")
    assert found["expected_gain"]["low"] > 0.01


def kept_in_an_attribute(self: Any, a: Tensor) -> Tensor:
    h = self.one(a)
    self.attention = torch.softmax(self.two(h), -1)
    return h


def printed(self: Any, a: Tensor) -> Tensor:
    h = self.one(a)
    print(self.two(h))
    return h


def asked_for(self: Any, a: Tensor) -> Tensor:
    h = self.one(a)
    return h if self.two(h).mean() < 1e9 else -h


def as_numbers(self: Any, a: Tensor) -> Tensor:
    h = self.one(a)
    norm = float(self.two(h).abs().max())
    return h / max(norm, 1.0)


def written_in_place(self: Any, a: Tensor) -> Tensor:
    h = self.one(a)
    memory = torch.zeros_like(h)
    memory[:, :4] = self.two(h)[:, :4]
    return memory + h


def state_written(self: Any, a: Tensor) -> Tensor:
    h = self.one(a)
    self.state.copy_(self.two(h).mean((0, 1)))
    return h


def random_numbers(self: Any, a: Tensor) -> Tensor:
    h = self.one(a)
    torch.bernoulli(torch.sigmoid(self.two(h)))
    return h


def in_an_object(self: Any, a: Tensor) -> Any:
    h = self.one(a)
    return SimpleNamespace(deep=SimpleNamespace(deeper=SimpleNamespace(deepest={"two": [self.two(h)]})), h=h)


def activated(self: Any, a: Tensor) -> Tensor:
    return torch.relu(self.layer(a))


def called_twice(self: Any, a: Tensor) -> Tensor:
    """Of a module that is called twice, the result of one call is lost; the lines of it are not at fault."""
    self.block(a)
    return self.block(a + 1)


def to_a_list(self: Any, a: Tensor) -> Tensor:
    h = self.one(a)
    return h * len(self.two(h).tolist())


@pytest.mark.parametrize(
    "forward",
    [
        kept_in_an_attribute, printed, asked_for, as_numbers, written_in_place, state_written, random_numbers,
        in_an_object, to_a_list, called_twice,
    ],
)  # fmt: skip
def test_what_somebody_may_read_is_left_alone(forward: Any, capsys: pytest.CaptureFixture[str]) -> None:
    layers = {name: nn.Linear(32, 32) for name in ("one", "two")}
    model = Does(forward, **layers, block=Does(activated, layer=nn.Linear(32, 32)))
    model.register_buffer("state", torch.zeros(32))

    assert not found_in(model, x(4, 16, 32))
    capsys.readouterr()


def test_the_line_of_a_call_whose_result_is_lost_is_named() -> None:
    (found,) = found_in(Does(called_twice, block=nn.Sequential(nn.Linear(32, 32), nn.ReLU())), x(4, 16, 32))
    assert found["where"]["source"] == f"test_unread.py:{called_twice.__code__.co_firstlineno + 2}"


def test_what_a_call_keeps_is_written_to_the_document() -> None:
    model = Does(kept_in_an_attribute, one=nn.Linear(32, 32), two=nn.Linear(32, 32)).eval()
    found = torchgauge.analyze(model, inputs=(x(4, 16, 32),))

    (kept,) = found.capture.run.kept_ops
    assert found.capture.ops[kept].op == "aten::_softmax"
    assert found.to_dict()["capture"]["kept_ops"] == [kept]


def test_training_reads_what_inference_does_not() -> None:
    model = Does(overwritten, enrich=nn.Linear(64, 64), norm=nn.LayerNorm(64), out=nn.Linear(64, 64)).train()
    found = torchgauge.analyze(model, inputs=(x(8, 32, 64),), mode="train", all_advice=True)
    assert "unread-result" not in {row["rule"] for row in found.advice}
