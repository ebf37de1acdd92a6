"""`torchgauge fit`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchgauge.cli.main import main

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor):
        return self.a(x).relu()
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return f"{path}:Net"


def test_json_has_one_entry_per_device(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["fit", target, "--on", "h200,l4", "--on", "24GiB", "--mode", "train", "--input", "8x64", "--json"]
    assert main([*given, "--no-remedies"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["device"] for one in document["fit"]] == ["h200", "l4", "24GiB"]
    first = document["fit"][0]
    assert first["verdict"] == "fits"
    assert sum(first["by_class"].values()) == first["reserved_bytes"]
    assert first["bounds"]["used_bytes"]["low"] <= first["used_bytes"] <= first["bounds"]["used_bytes"]["high"]


def test_the_report_says_whether_it_fits_and_what_to_change(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", target, "--on", "300MiB", "--mode", "train", "--input", "8x64"]) == 0
    out = capsys.readouterr().out
    assert "does not fit" in out
    assert "optimizer state" in out
    assert "not even a batch of 1 fits" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--on", "h1000"], "did you mean h100"),
        (["--mode", "train", "--optimizer", "adan"], "no optimizer 'adan'"),
        (["--device", "cuda"], "--on"),
        (["-o", "report.pdf"], "must end in one of: .json, .txt"),
    ],
)
def test_wrong_usage(target: str, capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert main(["fit", target, "--input", "8x64", *options]) == 2
    assert words in capsys.readouterr().err
