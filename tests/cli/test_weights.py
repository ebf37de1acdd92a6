from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.cli import main


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "net.pt"
    torch.save(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).state_dict(), path)
    return path


def test_the_tensors_of_a_file_are_listed(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", str(checkpoint)]) == 0
    out, err = capsys.readouterr()
    assert "Stored      104 B  26 elements in 4 tensors" in out
    assert err == ""


def test_the_document_has_target_totals_and_weights(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", str(checkpoint), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["target"]["kind"] == "checkpoint"
    assert document["totals"]["stored_bytes"] == 104
    assert [(row["name"], row["shape"]) for row in document["weights"]] == [
        ("0.weight", [4, 3]),
        ("0.bias", [4]),
        ("1.weight", [2, 4]),
        ("1.bias", [2]),
    ]
    raw = checkpoint.read_bytes()
    first = document["weights"][0]
    stored = torch.frombuffer(bytearray(raw[first["offset"] : first["offset"] + first["bytes"]]), dtype=torch.float32)
    assert torch.equal(stored.reshape(4, 3), torch.load(checkpoint)["0.weight"])


def test_every_form_of_the_list_is_written(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["w.json", "w.csv", "w.weights.csv", "w.txt"]
    assert main(["weights", str(checkpoint), *(x for n in names for x in ("-o", str(tmp_path / n)))]) == 0
    assert (tmp_path / "w.csv").read_text() == (tmp_path / "w.weights.csv").read_text()
    assert (tmp_path / "w.txt").read_text().startswith(str(checkpoint))
    assert capsys.readouterr().err.count("wrote ") == 4


@pytest.mark.parametrize(
    ("content", "message"), [(b"\x89PNG\r\n\x1a\n" + b"0" * 64, "a PNG image"), (b"hello\n" * 20, "text")]
)
@pytest.mark.parametrize("command", [["weights"], ["analyze"], []])
def test_the_message_says_what_a_file_without_a_model_looks_like(
    content: bytes, message: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    assert main([*command, str(tmp_path / "model.pt")]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", [["weights"], []])
def test_a_missing_file_is_an_error_of_the_request(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "no/such/model.pt"]) == 1
    assert capsys.readouterr().err == "torchgauge: error: there is no file 'no/such/model.pt'\n"


def test_a_wrong_suffix_is_reported_before_the_file_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "no/such/model.pt", "-o", "w.docx"]) == 2
    assert "'w.docx': the name must end in one of: .against.csv, .csv, " in capsys.readouterr().err


def test_code_is_joined_on_the_command_line(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, {}))\n"
    (tmp_path / "nets.py").write_text(code.format(2))
    assert main([str(checkpoint), "--as", f"{tmp_path / 'nets.py'}:build", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["macs"] == 3 * 4 + 4 * 2
    (tmp_path / "nets.py").write_text(code.format(5))
    assert main([str(checkpoint), "--as", f"{tmp_path / 'nets.py'}:build"]) == 1
    assert "1.weight: 2×4 in the file, 5×4 in the code" in capsys.readouterr().err


def test_code_is_joined_with_the_list_of_weights(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, {}))\n"
    (tmp_path / "nets.py").write_text(code.format(2))
    assert main(["weights", str(checkpoint), "--as", f"{tmp_path / 'nets.py'}:build", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["weights"]
    assert [(row["module"], row["module_type"]) for row in rows] == [("0", "Linear")] * 2 + [("1", "Linear")] * 2
    (tmp_path / "nets.py").write_text(code.format(5))
    assert main(["weights", str(checkpoint), "--as", f"{tmp_path / 'nets.py'}:build"]) == 1
    assert "1.weight: 2×4 in the file, 5×4 in the code" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["analyze"], ["weights"]])
def test_imports_of_a_pickle_are_printed_even_when_quiet(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(nn.Sequential(nn.Linear(3, 4)), tmp_path / "whole.pt")
    assert main([*command, str(tmp_path / "whole.pt"), "--allow-pickle", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "which imports and calls:\n  expected: torch.nn.modules.container.Sequential()" in err
    assert main([*command, str(tmp_path / "whole.pt"), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("argv", [["system", "--allow-pickle"], ["--allow-pickle", "system"]])
def test_every_command_takes_the_permission_to_unpickle(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_pickled_module_runs_only_when_allowed_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(nn.Sequential(nn.Linear(3, 4)), tmp_path / "whole.pt")
    assert main([str(tmp_path / "whole.pt"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["totals"]["macs"] is None
    assert err == ""
    assert main([str(tmp_path / "whole.pt"), "--json", "--allow-pickle"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["totals"]["macs"] == 12
    assert "which imports and calls:\n  expected: torch.nn.modules.container.Sequential()" in err


def test_a_scan_shows_itself(checkpoint: Path, tmp_path: Path) -> None:
    scan = tg.scan_weights(checkpoint)
    assert repr(scan) == f"<WeightScan of {checkpoint}: 4 tensors>"
    assert len(scan.to_dataframe()) == len(scan.weights) == 4
    scan.save(tmp_path / "scan.json")
    assert json.loads((tmp_path / "scan.json").read_text())["totals"] == scan.to_dict()["totals"]
    assert scan._repr_html_().startswith("<pre>")


@pytest.mark.parametrize("name", ["w.ops.csv", "w.trace.json"])
def test_a_form_that_only_an_analysis_has_is_wrong_usage(
    name: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["weights", str(checkpoint), "-o", str(tmp_path / name)]) == 2
    assert "the name must end in one of" in capsys.readouterr().err
    assert not (tmp_path / name).exists()


def test_a_missing_folder_is_reported_before_the_scan(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchgauge.analysis.scan_weights", lambda *_, **__: pytest.fail("scanned"))
    assert main(["weights", str(checkpoint), "-o", str(tmp_path / "none" / "w.json")]) == 1
    assert "there is no folder" in capsys.readouterr().err
