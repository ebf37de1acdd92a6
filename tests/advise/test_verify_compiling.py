"""`torch.compile`, and CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.advise.trying import applied, bench, not_applicable, row, x
from torchgauge.capture.restored_state import process_state_kept
from torchgauge.verify import NotApplicableError, judge, optimised
from torchgauge.verify.transformations.execution import positional

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_graph_takes_keywords_in_the_order_of_the_forward() -> None:
    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor | None = None, scale: float = 1.0) -> Tensor:
            return a * scale if b is None else a + b

    ones = torch.ones(2)
    in_order = positional(bench(Two(), b=ones, a=ones).trial(row("launch-bound")))

    assert [tuple(value.shape) for value in in_order[0]] == [(2,), (2,)]
    assert in_order[1] == {}
    with pytest.raises(NotApplicableError, match="takes other inputs"):
        positional(bench(Two(), ones, scale=2.0).trial(row("launch-bound")))
    assert "CUDA graphs need a CUDA device" in not_applicable(bench(Two(), ones), row("launch-bound"))


def test_a_compiler_that_is_not_there_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)

    assert "C++ compiler" in not_applicable(bench(nn.Linear(2, 2), x(2, 2)), row("dispatch-bound"))


@pytest.mark.parametrize("rule", ["linear-activation", "dispatch-bound", "pointwise-chain", "conv-bn-activation"])
def test_what_is_compiled_is_what_the_advice_says(rule: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval()
    place = bench(model, x(2, 2))
    module = "1" if rule == "pointwise-chain" else ""

    code = applied(place, row(rule, module=module)).code

    assert ("get_submodule(path).compile()" in code) is (rule == "pointwise-chain")
    assert ("freezing" in code) is (rule in ("conv-bn-activation", "linear-activation"))
    assert isinstance(optimised(place.copied(), [code], ()), nn.Module)


@pytest.mark.slow
def test_a_compiled_model_is_compared_and_its_state_is_let_go() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).eval()
    place = bench(model, x(8, 16))
    with process_state_kept():  # Inductor raises the recursion limit unless its cache holds the model
        verdict = judge(place, [applied(place, row("dispatch-bound"))], "time_s", 1e-3)

    assert verdict.error.relative is not None
    assert verdict.error.relative < 1e-5
    assert verdict.time is not None
    assert verdict.time.logs
