"""`torchgauge TARGET --inference`: what is printed, what is delivered, and the exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from torchgauge.cli import main

CODE = """
import random
import time
import torch
from torch import nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(3, 4)

class Fifth(Net):
    runs = 0

    def forward(self, x):
        if type(x) is torch.Tensor:
            Fifth.runs += 1
            if Fifth.runs == 5:
                raise RuntimeError("out of luck")
        return super().forward(x)

class AtMostTwo(Net):
    def forward(self, x):
        if type(x) is torch.Tensor and len(x) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(x)

class Leaving(Net):
    def forward(self, x):
        raise SystemExit(7)

class Slow(Net):
    def forward(self, x):
        if type(x) is torch.Tensor:
            print("running", flush=True)
            time.sleep(random.uniform(0.01, 0.05))  # its median is not known for long
        return super().forward(x)
"""
QUICK = ("--budget", "0.05", "--threads", "1")


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TORCHGAUGE_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "net.py"
    path.write_text(CODE)
    return path


def document(capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_time_and_memory_are_in_the_report(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["net.py:Net", "--inference", *QUICK]) == 0
    out, err = capsys.readouterr()
    assert "Measured on cpu" in out
    assert "Latency" in out
    assert "threads 1, budget 0.05 s, profile level modules" in out
    assert err == ""


def test_a_profile_and_its_sweeps_are_in_the_document(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["net.py:Net", "--profile", "--sweep", "batch=1,2", "--sweep", "threads=1", "--json", *QUICK]
    assert main(words) == 0
    found, _ = document(capsys)
    measured = found["measurements"]
    assert found["totals"]["time_s"] == measured["latency"]["median_s"]
    assert [(row["key"], row["value"]) for row in measured["sweep"]] == [("batch", 1), ("batch", 2), ("threads", 1)]
    assert {"memory", "unexplained_s", "threads", "system", "counters", "settings"} <= set(measured)
    assert all(op["time_s"] is not None for op in found["ops"])


def test_settings_come_from_the_environment(
    code: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHGAUGE_BUDGET", "0.04")
    monkeypatch.setenv("TORCHGAUGE_PROFILE_LEVEL", "latency")
    assert main(["net.py:Net", "--inference", "--threads", "1", "--json"]) == 0
    settings = document(capsys)[0]["measurements"]["settings"]
    assert settings == {"threads": 1, "memory_fraction": None, "budget_s": 0.04, "profile_level": "latency"}


def test_a_model_that_raises_in_its_fifth_run_leaves_what_was_measured(
    code: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The budget is not reached: a busy machine would make fewer runs in a short one.
    assert main(["net.py:Fifth", "--inference", "--json", "--budget", "600", "--threads", "1"]) == 1
    found, err = document(capsys)
    assert found["totals"]["macs"] == 12
    assert found["measurements"]["latency"]["runs"] == 3
    assert err == "torchgauge: error: measuring failed: RuntimeError: out of luck\n"


def test_output_of_the_model_is_not_in_the_json(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{code}:Slow", "--inference", "--json", *QUICK]) == 0
    found, err = document(capsys)
    assert found["measurements"]["failure"] is None
    assert "running" in err


def test_code_that_ends_the_program_is_one_message(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{code}:Leaving", "--input", "2x3"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "torchgauge: error: the model's code ended the program (SystemExit: 7)\n")


@pytest.mark.parametrize("options", [[], ["--inference", "--profile-level", "latency"]])
def test_a_trace_of_no_profiled_run_is_refused_before_anything_is_written(
    code: Path, tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = ["-o", str(tmp_path / "run.json"), "-o", str(tmp_path / "run.trace.json")]
    assert main([f"{code}:Net", *outputs, *options]) == 2
    assert "profiled run" in capsys.readouterr().err
    assert not (tmp_path / "run.json").exists()


def test_points_that_fail_are_reported_and_the_others_delivered(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["net.py:AtMostTwo", "--profile-level", "latency", "--sweep", "batch=4,2", "--json", *QUICK]
    assert main(words) == 1
    found, err = document(capsys)
    assert [row["latency"] is None for row in found["measurements"]["sweep"]] == [True, False]
    assert err.startswith("torchgauge: error: measuring failed: sweep, batch 4: the device ran out of memory")
    assert err.count("\n") == 1


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch knows CUDA")
def test_a_build_that_knows_no_such_device_still_gives_the_static_figures(
    code: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["net.py:Net", "--inference", "--device", "cuda", "--json", *QUICK]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["totals"]["macs"] > 0
    assert found["capture"]["device"] == "cpu"
    assert any("figures are those of the CPU" in warning for warning in found["capture"]["warnings"])
    assert "no CUDA device" in err
    assert main(["net.py:Net", "--device", "cuda"]) == 1
    assert "omit --device" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_one_message(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["net.py:Net", "--inference", "--device", "cuda:3", "--quiet", *QUICK]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "cuda:3" in err
    assert err.count("\n") == 1


def test_weights_without_code_are_still_shown(code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"some.weight": torch.ones(3)}, tmp_path / "weights.pt")
    assert main(["weights.pt", "--inference", "--no-weights", "--json", *QUICK]) == 1
    found, err = document(capsys)
    assert found["totals"]["params"] == 3
    assert "--as" in err


def test_a_state_dict_is_measured_with_its_code(code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"weight": torch.ones(4, 3), "bias": torch.ones(4)}, tmp_path / "weights.pt")
    assert main(["weights.pt", "--as", "net.py:Net", "--inference", "--no-weights", "--json", *QUICK]) == 0
    measured = document(capsys)[0]["measurements"]
    assert measured["failure"] is None
    assert not any("keep their initial values" in note for note in measured["notes"])


@pytest.mark.parametrize(
    "words",
    [
        ["--sweep", "size=1,2"],
        ["--sweep", "batch=0"],
        ["--inference", "--memory-fraction", "2"],
        ["--inference", "--budget", "-1"],
    ],
)
def test_a_malformed_request_is_refused_as_such(
    code: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["net.py:Net", *words]) == 2
    assert capsys.readouterr().err.startswith("torchgauge: error: ")


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent another way there")
def test_an_interruption_prints_what_was_measured_until_then(code: Path) -> None:
    words = [sys.executable, "-m", "torchgauge", "net.py:Slow", "--inference", "--budget", "600", "--threads", "1"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # What runs in the background of a shell ignores Ctrl-C, and so does what it starts.
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(words, **pipes, preexec_fn=heeding) as process:
        assert process.stderr is not None
        for _ in range(20):
            assert process.stderr.readline() == "running\n"
        time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Latency" in out
    assert "The measurement ended early: interrupted" in out
    reported = [line for line in err.splitlines() if line != "running"]
    assert reported == ["torchgauge: interrupted: the report has what was measured so far"]
