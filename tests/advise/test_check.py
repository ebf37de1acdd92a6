"""The code of advice is run on a copy of the model before it is shown."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.planted import gain_of
from tests.advise.trying import x
from torchgauge import analyze
from torchgauge.advise import Advice, Evidence, Gain, Patch, SourceEdit, Where, advise
from torchgauge.advise.code import FileEdit, Span
from torchgauge.capture import Request, trace
from torchgauge.source import Candidate
from torchgauge.verify import TRANSFORMATIONS, Applied, CodeCheck, NotApplicableError, apply_edit, transformation


class Twice(nn.Module):
    """The norm and the first layer could be one, and the last layer is applied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64)

    def forward(self, a: Tensor) -> Tensor:
        h: Tensor = self.norm(self.first(a))
        return self.last(h) + self.last(h)


def checker(model: nn.Module, *inputs: Tensor) -> CodeCheck:
    capture = analyze(model, inputs=inputs, advice=False, progress=False).capture
    request = Request(torch.device("cpu"))
    traced = trace(model, [Candidate(inputs, {}, None, True)], request)
    return CodeCheck(model, traced, request, Evidence(capture), Evidence)


def saying(change: Patch | SourceEdit, low: float = 0.1, high: float = 0.3, **fields: Any) -> Advice:
    return Advice(
        rule=fields.pop("rule", "conv-bn-fusion"),
        where=Where(""),
        evidence={},
        recommendation="do it",
        change=change,
        expected_gain=Gain(fields.pop("quantity", "time_s"), low, high, "said so"),
        risk="none",
        confidence="high",
        **fields,
    )


FOLD = Patch(
    "model.first = torch.nn.utils.fusion.fuse_linear_bn_eval(model.first, model.norm)\nmodel.norm = torch.nn.Identity()"
)


def test_code_that_holds_is_shown_as_it_is() -> None:
    said = saying(FOLD)

    assert checker(Twice().eval(), x(32, 64))(said) == said


def test_code_that_raises_is_left_out() -> None:
    said = saying(Patch("model.get_submodule('absent')"))

    assert checker(Twice().eval(), x(32, 64))(said) == replace(said, change=None)


@pytest.mark.parametrize(
    "code",
    [
        "model.norm = torch.nn.Identity(); model.first.bias.data += 1",  # other values
        "model.last = torch.nn.Linear(64, 32)",  # another shape
        "model.double(); model.register_forward_pre_hook(lambda module, args: (args[0].double(),))",  # another type
    ],
)
def test_advice_whose_code_changes_the_results_is_withdrawn(code: str) -> None:
    assert checker(Twice().eval(), x(32, 64))(saying(Patch(code))) is None


def test_a_bug_may_change_the_results() -> None:
    said = saying(Patch("model.norm = torch.nn.Identity(); model.first.bias.data += 1"), kind="bug")

    assert checker(Twice().eval(), x(32, 64))(said) == said


@pytest.mark.parametrize("quantity", ["time_s", "param_bytes", "peak_activation_bytes"])
def test_advice_that_saves_nothing_is_withdrawn(quantity: str) -> None:
    larger = "model.last = torch.nn.Sequential(model.last, torch.nn.Linear(64, 64))"
    same = "torch.nn.init.eye_(model.last[1].weight); torch.nn.init.zeros_(model.last[1].bias)"
    said = saying(Patch(f"{larger}\n{same}"), quantity=quantity)

    assert checker(Twice().eval(), x(32, 64))(said) is None


def test_a_gain_that_the_changed_copy_does_not_have_is_replaced() -> None:
    found = checker(Twice().eval(), x(32, 64))(saying(FOLD, 0.9, 0.95))

    assert found is not None
    gain = gain_of(found)
    assert 0 < gain.low < gain.high < 0.6
    assert "copy of the model" in gain.how
    assert gain.amount is not None


def test_the_model_and_the_random_state_are_untouched() -> None:
    model = Twice().eval()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    modules = dict(model.named_modules())

    checker(model, x(32, 64))(saying(Patch("torch.rand(1)\nmodel.first.weight.data.zero_()\nmodel.train()")))

    assert dict(model.named_modules()) == modules
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_a_model_without_values_is_checked_by_its_ops() -> None:
    with torch.device("meta"):
        model = Twice().eval()
    said = saying(FOLD)

    assert checker(model, x(32, 64))(said) == said


def test_advice_that_was_changed_is_ranked_again() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()).eval()
    found = analyze(model, inputs=(x(1, 3, 32, 32),), advice=False, progress=False)
    evidence = Evidence(found.capture, found)
    shown = [advice for advice in advise(evidence) if advice.rule == "conv-bn-fusion"]

    def smaller(advice: Advice) -> Advice:
        return replace(advice, expected_gain=replace(gain_of(advice), low=0.0, high=0.001))

    assert shown
    assert advise(evidence, check=lambda advice: None) == []
    assert not [advice for advice in advise(evidence, check=smaller) if advice.rule == "conv-bn-fusion"]


# --- edits


def doubled(a: Tensor) -> Tensor:
    return a + a


class Base(nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        return doubled(a).relu()


class Derived(Base):
    @torch.no_grad()
    def forward(self, a: Tensor) -> Tensor:
        return super().forward(a).abs()


def edit(old: str, new: str) -> SourceEdit:
    """Of this file."""
    text = Path(__file__).read_bytes()
    start = text.index(old.encode())
    return SourceEdit((FileEdit(Path(__file__).name, text, (Span(start, start + len(old), new.encode()),)),))


@pytest.mark.parametrize(
    ("old", "new", "factor"),
    [
        ("return a + a", "return 3 * a", 3),  # a function that a base class calls
        ("doubled(a).relu()", "(doubled(a) * 2).relu()", 4),  # a method that `super()` finds
        ("super().forward(a).abs()", "super().forward(a).abs() * 5", 10),  # behind a decorator of torch's
    ],
)
def test_an_edit_changes_the_copy_alone(old: str, new: str, factor: int) -> None:
    model, a = nn.Sequential(Derived()), x(8).abs()
    changed = copy.deepcopy(model)

    apply_edit(changed, edit(old, new))

    torch.testing.assert_close(changed(a), factor * a)
    torch.testing.assert_close(model(a), 2 * a)
    assert type(model[0]) is Derived
    assert doubled(a) is not None
    torch.testing.assert_close(Derived()(a), 2 * a)


def test_an_edit_of_a_file_that_has_changed_is_refused() -> None:
    stale = edit("return a + a", "return 3 * a")
    file = replace(stale.files[0], before=b"def doubled(a):\n    return a\n", spans=())

    with pytest.raises(NotApplicableError):
        apply_edit(nn.Sequential(Derived()), SourceEdit((file,)))


@pytest.mark.parametrize(("scale", "kept"), [(1, True), (1.05, False)])
def test_other_settings_within_the_tolerance_of_the_rule_are_kept(scale: float, kept: bool) -> None:
    torch.manual_seed(1)  # the slopes differ by 0.4 and 0.8 %
    model = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.1), nn.Linear(64, 64)).eval()
    said = saying(Patch(f"model[1] = torch.nn.LeakyReLU({0.105 * scale})"), rule="tests-slope")
    assert checker(model, x(32, 64))(said) is None  # beyond rounding

    transformation("tests-slope", tolerance=5e-3)(lambda trial: Applied(""))
    try:
        # The same ops: their times cannot tell what other settings save.
        assert checker(model, x(32, 64))(said) == (said if kept else None)
    finally:
        del TRANSFORMATIONS["tests-slope"]
