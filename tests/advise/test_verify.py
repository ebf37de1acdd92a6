from __future__ import annotations

import copy
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge
from tests.advise.trying import FakeClock, Timed, bench, row, rule_with, timed_bench
from torchgauge.advise import RULES
from torchgauge.advise.registry import load_rules
from torchgauge.cli import main
from torchgauge.errors import UsageError
from torchgauge.verify import TRANSFORMATIONS, Applied, Trial, load_transformations, transformation
from torchgauge.verify.reasons import REASONS
from torchgauge.verify.verifying import read_budget, verify

pytestmark = pytest.mark.usefixtures("one_thread")


def tried(code: str, quantity: str = "time_s", **settings: Any) -> dict[str, Any]:
    with rule_with("mine", code, **settings):
        rows, _ = verify(timed_bench(), [row("mine", quantity)])
    found: dict[str, Any] = rows[0]["verified"]
    return found


def test_every_rule_can_be_applied_or_says_why_not() -> None:
    load_rules()
    load_transformations()

    assert set(RULES) == set(TRANSFORMATIONS) | set(REASONS)
    assert not set(TRANSFORMATIONS) & set(REASONS)


def test_advice_that_saves_time_and_keeps_the_outputs_is_kept() -> None:
    found = tried("model.cost = 0.75")

    assert found["gain"] == pytest.approx(0.25)
    assert found["ci95"] == pytest.approx([0.25, 0.25])
    assert found["output_error"] == {"relative": 0.0, "cosine": pytest.approx(1.0), "top1": None}
    assert found["kept"] is True
    assert found["reason"] is None


def test_advice_that_loses_time_is_withdrawn() -> None:
    found = tried("model.cost = 1.5")

    assert found["gain"] == pytest.approx(-0.5)
    assert (found["kept"], found["reason"]) == (False, "it takes 50.0 % more time")


def test_advice_that_changes_nothing_is_withdrawn() -> None:
    assert tried("pass")["reason"] == "no gain in time can be told from the noise"


def test_advice_that_changes_the_outputs_beyond_its_tolerance_is_withdrawn() -> None:
    faster_but_wrong = "model.cost = 0.5; model.factor.data *= 1.02"

    found = tried(faster_but_wrong)

    assert found["output_error"]["relative"] == pytest.approx(0.02, rel=1e-5)
    assert found["kept"] is False
    assert "its outputs differ by 0.02 of their norm, which is more than 0.001" in found["reason"]
    assert tried(faster_but_wrong, tolerance=0.05)["kept"] is True


@pytest.mark.parametrize(
    "code",
    ["raise RuntimeError('not so')", "model.forward = lambda x: 1 / 0", "this is no code", "model.nothing.here"],
)
def test_a_transformation_that_raises_is_survived_and_told(code: str) -> None:
    with rule_with("mine", code), rule_with("other", "model.cost = 0.5"):
        rows, plan = verify(timed_bench(), [row("mine"), row("other")])

    assert rows[0]["verified"]["kept"] is False
    assert rows[0]["verified"]["reason"].startswith("applied, it fails: ")
    assert rows[1]["verified"]["kept"] is True
    assert plan is not None
    assert plan["rules"] == ["other"]


def test_the_users_model_is_never_changed() -> None:
    place = timed_bench()
    before = copy.deepcopy(place.subject.model.state_dict())
    with rule_with("mine", "model.cost = 0.5; model.factor.data += 1; model.child = torch.nn.Linear(2, 2)"):
        verify(place, [row("mine")])

    assert place.subject.model.cost == 1.0
    assert list(place.subject.model.children()) == []
    assert place.subject.model.state_dict() == before


def test_a_model_that_cannot_be_copied_is_the_only_reason() -> None:
    place = timed_bench()

    class Alone(FakeClock):
        def __deepcopy__(self, memo: Any) -> FakeClock:
            raise TypeError("there is but one")

    place.subject.model.clock = Alone()  # type: ignore[assignment]
    with rule_with("mine", "model.cost = 0.5"):
        rows, plan = verify(place, [row("mine")])

    assert rows[0]["verified"] is None
    assert rows[0]["unverified"] == "the model cannot be copied: TypeError: there is but one"
    assert plan is None


def test_a_model_that_fails_by_itself_is_the_only_reason() -> None:
    place = timed_bench()
    place.subject.model.cost = None  # type: ignore[assignment]
    with rule_with("mine", "model.cost = 0.5"):
        rows, plan = verify(place, [row("mine")])

    assert rows[0]["verified"] is None
    assert rows[0]["unverified"].startswith("the model itself fails: TypeError: ")
    assert plan is None


def test_a_gain_no_larger_than_that_of_a_plain_copy_is_withdrawn() -> None:
    class Lucky(Timed):
        """A copy is faster by 2 % for no reason of its own."""

        def __deepcopy__(self, memo: Any) -> Timed:
            return Timed(self.clock, 0.98 * self.cost).eval()

    clock = FakeClock()
    place = bench(Lucky(clock).eval(), torch.ones(4), clock=clock)
    with rule_with("none", "model.cost *= 1.01"), rule_with("half", "model.cost /= 2"):
        rows, plan = verify(place, [row("none"), row("half")])

    assert rows[0]["verified"]["gain"] == pytest.approx(1 - 0.98 * 1.01)
    assert rows[0]["verified"]["kept"] is False
    assert rows[1]["verified"]["ci95"] == pytest.approx([0.5, 1 - 0.49 * 0.98])
    assert plan is not None
    assert plan["rules"] == ["half"]


def test_a_rule_without_a_transformation_stays_unverified_with_its_reason() -> None:
    rows, _ = verify(timed_bench(), [row("needless-copy"), row("of-a-user")])

    assert [found["verified"] for found in rows] == [None, None]
    assert [found["unverified"] for found in rows] == [REASONS["needless-copy"], "its rule brings no transformation"]


def test_an_interruption_keeps_what_was_verified() -> None:
    with ExitStack() as stack:
        stack.enter_context(rule_with("first", "model.cost = 0.5"))
        stack.enter_context(rule_with("second", "raise KeyboardInterrupt"))
        stack.enter_context(rule_with("third", "model.cost = 0.5"))
        rows, plan = verify(timed_bench(), [row(name) for name in ("first", "second", "third")])

    assert rows[0]["verified"]["kept"] is True
    assert [found["unverified"] for found in rows[1:]] == ["interrupted"] * 2
    assert plan is None


def test_an_interruption_of_the_plan_is_told() -> None:
    only_once = "if model.cost != 1.0: raise KeyboardInterrupt\nmodel.cost /= 2"
    with rule_with("one", "model.cost /= 4"), rule_with("two", only_once, stage="graph"):
        rows, plan = verify(timed_bench(), [row("one"), row("two")])

    assert all(found["verified"]["kept"] for found in rows)
    assert plan is not None
    assert (plan["rules"], plan["reason"]) == ([], "interrupted")


def test_settings_of_torch_hold_only_while_the_changed_model_runs() -> None:
    threads = torch.get_num_threads()
    seen: list[int] = []

    class Net(Timed):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(torch.get_num_threads())
            return super().forward(x)

    clock = FakeClock()
    place = bench(Net(clock).eval(), torch.ones(4), clock=clock)
    seen.clear()
    verify(place, [row("thread-count", code=f"torch.set_num_threads({threads + 1})")])

    assert {threads, threads + 1} == set(seen)
    assert seen[0] == threads
    assert torch.get_num_threads() == threads


def test_rules_that_say_the_same_are_measured_once() -> None:
    clock = FakeClock()
    place = bench(Timed(clock).eval(), torch.ones(4), clock=clock)
    code = "model.cost = 0.5"
    with rule_with("one", code), rule_with("two", code):
        before = clock.now
        verify(place, [row("one")])
        alone = clock.now - before
        rows, plan = verify(place, [row("one"), row("two")])

    assert rows[0]["verified"] == rows[1]["verified"]
    assert clock.now - before - alone == pytest.approx(alone)
    assert plan is not None
    assert plan["rules"] == ["one", "two"]


def test_a_user_brings_a_transformation_with_one_function_and_no_two_for_a_rule() -> None:
    def twice_as_fast(trial: Trial) -> Applied:
        return Applied(f"model.cost = {trial.model.cost} / 2")

    transformation("mine")(twice_as_fast)
    try:
        rows, _ = verify(timed_bench(), [row("mine")])
        with pytest.raises(ValueError, match="two transformations for 'mine'"):
            transformation("mine")(twice_as_fast)
    finally:
        del TRANSFORMATIONS["mine"]
    with pytest.raises(ValueError, match="no stage 'whenever'"):
        transformation("other", stage="whenever")

    assert rows[0]["verified"]["gain"] == pytest.approx(0.5)


@pytest.mark.parametrize("text", ["nonsense", "0", "-1", "inf"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="TORCHGAUGE_VERIFY_BUDGET"):
        read_budget({"TORCHGAUGE_VERIFY_BUDGET": text})


def test_the_budget_is_what_the_environment_says_else_the_default() -> None:
    assert read_budget({"TORCHGAUGE_VERIFY_BUDGET": "2.5"}) == 2.5
    assert read_budget({}) == 4.0


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)).eval()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGAUGE_VERIFY_BUDGET", "0.02")


@pytest.mark.usefixtures("quick")
def test_an_analysis_verifies_its_advice_and_it_survives_saving(tmp_path: Path) -> None:
    model = net().train()
    state, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = torchgauge.analyze(model, input_size=(1, 3, 8, 8), verify=True, progress=False)
    fusion = next(each for each in found.advice if each.rule == "conv-bn-fusion")
    found.save(tmp_path / "run.json")
    loaded = torchgauge.load(tmp_path / "run.json")

    assert fusion.verified["output_error"]["relative"] < 1e-6
    assert isinstance(fusion.verified["kept"], bool)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert loaded.advice == found.advice
    assert loaded.plan == found.plan
    assert loaded.to_dict()["plan"] == json.loads(json.dumps(found.to_dict()["plan"]))
    assert str(loaded) == str(found)


def test_without_verification_nothing_is_said_of_it() -> None:
    found = torchgauge.analyze(net(), input_size=(1, 3, 8, 8), progress=False)

    assert found.plan is None
    assert all(each.verified is None and "unverified" not in each for each in found.advice)


def test_there_must_be_advice_to_verify() -> None:
    with pytest.raises(UsageError, match="no advice to verify"):
        torchgauge.analyze(net(), input_size=(1, 3, 8, 8), advice=False, verify=True)


@pytest.mark.usefixtures("quick")
def test_weights_without_code_are_not_verified(tmp_path: Path) -> None:
    half = torch.randn(64, 64).bfloat16().float()
    torch.save({"block.weight": half, "other": half.clone()}, tmp_path / "weights.pt")

    found = torchgauge.analyze(tmp_path / "weights.pt", verify=True, progress=False)

    assert found.advice
    assert {each.unverified for each in found.advice} == {"there is no code to run"}


MODEL = "from torch import nn\nNet = lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()\n"


@pytest.mark.usefixtures("quick")
def test_the_command_line_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    target = ["analyze", f"{tmp_path / 'net.py'}:Net", "--input", "1x3x8x8", "--no-progress"]

    assert main([*target, "--verify", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main([*target, "--verify", "--no-advice"]) == 2

    fusion = next(each for each in document["advice"] if each["rule"] == "conv-bn-fusion")
    assert fusion["verified"]["output_error"]["relative"] < 1e-6
    assert "plan" in document
    assert "no advice to verify" in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
def test_an_interrupted_verification_has_its_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    load_transformations()
    monkeypatch.delitem(TRANSFORMATIONS, "conv-bn-fusion")
    with rule_with("conv-bn-fusion", "raise KeyboardInterrupt"):
        status = main(["analyze", f"{tmp_path / 'net.py'}:Net", "--input", "1x3x8x8", "--no-progress", "--verify"])

    captured = capsys.readouterr()
    assert status == 130
    assert "interrupted: the report has what was verified until then" in captured.err
    assert "not measured: interrupted" in captured.out
