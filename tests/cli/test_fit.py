"""`torchgauge fit`."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from torchgauge.cli import main

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
    assert "does not fit" in " ".join(out.split())
    assert "optimizer state" in out
    assert "none (1 does not fit)" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--on", "hh100"], "did you mean h100"),
        (["--mode", "train", "--optimizer", "adan"], "no optimizer 'adan'"),
        (["--device", "cuda"], "--on"),
        (["-o", "report.pdf"], "must end in one of: .html, .json"),
    ],
)
def test_wrong_usage(target: str, capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert main(["fit", target, "--input", "8x64", *options]) == 2
    assert words in capsys.readouterr().err


def test_a_matrix_of_devices_and_batches_in_every_format(target: str, tmp_path: Path) -> None:
    names = ("fit.html", "fit.svg", "fit.md", "fit.tex", "fit.txt", "fit.json")
    outputs = [part for name in names for part in ("-o", str(tmp_path / name))]
    given = ["fit", target, "--on", "h200,900MiB", "--batch", "1,4", "--mode", "train", "--no-remedies", "--quiet"]
    path = Path(target.rpartition(":")[0])
    path.write_text(MODEL + "        \n    example_input_array = torch.empty(2, 64)\n")
    assert main([*given, *outputs]) == 0
    document = json.loads((tmp_path / "fit.json").read_text())
    assert [(one["device"], one["batch"]) for one in document["fit"]] == [
        ("h200", 1), ("h200", 4), ("900MiB", 1), ("900MiB", 4)
    ]  # fmt: skip
    picture = ElementTree.fromstring((tmp_path / "fit.svg").read_text())
    assert len(picture.findall(".//{http://www.w3.org/2000/svg}polygon")) >= 4 * 5
    for name in names[2:5]:
        assert "too close to call" in (tmp_path / name).read_text()
    course = document["fit"][0]["course"]
    assert max(map(sum, zip(*(course[name] for name in course if name != "reserved"), strict=True))) <= max(
        course["reserved"]
    )


def test_a_wrong_batch_is_refused(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", target, "--input", "8x64", "--batch", "one"]) == 2
    assert "1,8,32" in capsys.readouterr().err
