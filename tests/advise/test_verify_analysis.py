"""`verify=True` and `--verify`: what an analysis, its file and the command line say of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchgauge
from tests.advise.trying import rule_with
from torchgauge.cli import main
from torchgauge.errors import UsageError
from torchgauge.verify import TRANSFORMATIONS, load_transformations, no_plan

pytestmark = pytest.mark.usefixtures("one_thread")


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)).eval()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGAUGE_VERIFY_BUDGET", "0.2")


@pytest.mark.usefixtures("quick")
def test_an_analysis_verifies_its_advice_and_it_survives_saving(tmp_path: Path) -> None:
    model = net().train()
    state, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = torchgauge.analyze(model, input_size=(1, 3, 8, 8), verify=True, progress=False)
    fusion = next(each for each in found.advice if each.rule == "conv-bn-fusion")
    found.save(tmp_path / "run.json")
    loaded = torchgauge.load(tmp_path / "run.json")

    assert fusion["verified"]["output_error"]["relative"] < 1e-6
    assert isinstance(fusion["verified"]["kept"], bool)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert loaded.advice == found.advice
    assert loaded.plan == found.plan
    assert loaded.to_dict()["plan"] == json.loads(json.dumps(found.to_dict()["plan"]))
    assert str(loaded) == str(found)


class TwoNames(nn.Module):
    """The convolution and the norm are attributes, and members of what forward calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.trunk = nn.Sequential(self.conv, self.norm, nn.ReLU())
        nn.init.normal_(self.norm.get_buffer("running_mean"))

    def forward(self, image: torch.Tensor) -> Any:
        return self.trunk(image)


@pytest.mark.usefixtures("quick")
def test_a_module_with_two_names_is_replaced_under_both() -> None:
    found = torchgauge.analyze(TwoNames().eval(), input_size=(1, 3, 8, 8), verify=True, all_advice=True, progress=False)
    (fusion,) = (each for each in found.advice if each.rule == "conv-bn-fusion")

    assert 0 < fusion["verified"]["output_error"]["relative"] < 1e-6


def test_without_verification_nothing_is_said_of_it() -> None:
    found = torchgauge.analyze(net(), input_size=(1, 3, 8, 8), progress=False)

    assert found.plan is None
    assert all(each.verified is None and "unverified" not in each for each in found.advice)


def test_there_must_be_advice_to_verify() -> None:
    with pytest.raises(UsageError, match="no advice to verify"):
        torchgauge.analyze(net(), input_size=(1, 3, 8, 8), advice=False, verify=True)


@pytest.mark.usefixtures("quick")
def test_weights_without_code_are_not_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = torch.randn(64, 64).bfloat16().float()
    torch.save({"block.weight": half, "other": half.clone()}, tmp_path / "weights.pt")

    found = torchgauge.analyze(tmp_path / "weights.pt", verify=True, progress=False)

    assert found.advice
    assert {each.unverified for each in found.advice} == {"there is no code to run: give it with code= (--as TARGET)"}
    assert main(["analyze", str(tmp_path / "weights.pt"), "--verify", "--quiet"]) == 1
    assert "verifying failed: there is no code to run" in capsys.readouterr().err


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
    assert "interrupted: the report has what was verified so far" in captured.err
    assert "not measured: interrupted" in captured.out


NO_CUDA = "cannot measure on 'cuda:0': this machine has no CUDA device"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize("inference", [False, True])
def test_without_the_device_the_static_figures_stand_and_every_row_says_why(inference: bool) -> None:
    found = torchgauge.analyze(
        net(), input_size=(1, 3, 8, 8), device="cuda", inference=inference, verify=True, progress=False
    )

    assert found.totals.macs == net_macs()
    assert {each.unverified for each in found.advice} == {NO_CUDA}
    assert {each.verified for each in found.advice} == {None}
    assert found.plan == no_plan(NO_CUDA)
    assert (None if found.measurements is None else found.measurements.failure) == (NO_CUDA if inference else None)


def net_macs() -> int:
    return 4 * 3 * 9 * 36 + 4 * 4 * 9 * 16


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize("options", [["--inference"], ["--verify"], ["--inference", "--verify"]])
def test_without_the_device_the_exit_status_is_the_same_whatever_was_to_be_run(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    target = ["analyze", f"{tmp_path / 'net.py'}:Net", "--input", "1x3x8x8", "--device", "cuda", "--no-progress"]

    assert main([*target, *options]) == 1
    out, err = capsys.readouterr()
    told = [{"--inference": "measuring", "--verify": "verifying"}[option] for option in options]
    assert err.splitlines() == [f"torchgauge: error: {what} failed: {NO_CUDA}" for what in told]
    flat = " ".join(out.split())  # lines are as long as the terminal is wide
    assert "MACs 3.89 k" in flat
    assert (f"not measured: {NO_CUDA}" in flat) is ("--verify" in options)
    assert (f" Plan none: {NO_CUDA} " in flat) is ("--verify" in options)


def test_what_interrupts_the_measurement_ends_the_verification_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(work: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchgauge.measure.measuring.measure_latency", interrupt)
    found = torchgauge.analyze(net(), input_size=(1, 3, 8, 8), inference=True, verify=True, progress=False)

    assert {each.unverified for each in found.advice} == {"interrupted"}
    assert found.plan == no_plan("interrupted")


def test_without_advice_there_is_nothing_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.source.load_real_model", lambda *given: pytest.fail("built for nothing"))
    found = torchgauge.analyze(nn.Linear(4, 4), input_size=(1, 4), verify=True, progress=False)

    assert (found.advice, found.plan) == ([], None)


def test_the_command_line_says_that_there_was_nothing_to_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\nNet = lambda: nn.Linear(4, 4)\n")

    assert main(["analyze", f"{tmp_path / 'net.py'}:Net", "--input", "1x4", "--no-progress", "--verify"]) == 0
    assert "nothing to verify" in capsys.readouterr().err
