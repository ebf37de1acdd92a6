from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import torchgauge as tg
from tests.weights.checkpoints import varied_tensors, write_varied
from torchgauge.cli import main
from torchgauge.errors import UsageError
from torchgauge.progress import Transfer, format_left


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_varied(tmp_path / "model.safetensors")


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert main([*argv, "--json"]) == 0
    parsed: dict[str, object] = json.loads(capsys.readouterr().out)
    return parsed


def test_the_document_has_the_figures_of_every_tensor_and_of_all(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, "weights", str(checkpoint), "--no-deep")
    rows = {row["name"]: row for row in found["weights"]}  # type: ignore[attr-defined]
    expected = varied_tensors()["layers.1.fc.weight"]
    assert rows["layers.1.fc.weight"]["max"] == expected.max().item()
    assert rows["layers.1.fc.weight"]["spectral_norm"] is None
    summary = found["weight_summary"]
    assert summary["scan"]["deep"] is False  # type: ignore[index]
    assert summary["failures"] == []  # type: ignore[index]
    assert {"total", "by_module", "by_kind", "outliers"} <= summary.keys()  # type: ignore[attr-defined]
    assert found["against"] is None


def test_small_files_get_the_deep_pass_by_default(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "weights", str(checkpoint))
    assert found["weight_summary"]["scan"]["deep"] is True  # type: ignore[index]
    found = document(capsys, "weights", str(checkpoint), "--no-weights")
    assert found["weight_summary"] is None
    assert "mean" not in found["weights"][0]  # type: ignore[index]


def test_the_spectrum_is_deep(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "weights", str(checkpoint), "--spectrum")
    row = next(row for row in found["weights"] if row["name"] == "layers.0.fc.weight")  # type: ignore[attr-defined]
    assert len(row["spectrum"]["singular_values"]) == 64
    assert main(["weights", str(checkpoint), "--spectrum", "--no-deep"]) == 2
    assert "leave out --no-deep" in capsys.readouterr().err


def test_json_lines_hold_every_row(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "rows.jsonl"
    assert main(["weights", str(checkpoint), "--quiet", "-o", str(target)]) == 0
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    rows = {row["name"]: row for row in document(capsys, "weights", str(checkpoint))["weights"]}  # type: ignore[attr-defined]
    assert {line["name"]: line for line in lines} == rows
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".rows")] == []


@pytest.mark.usefixtures("without_isolation")
def test_a_cut_file_gives_the_rest_and_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_varied(tmp_path / "m.safetensors")
    from torchgauge.weights import plan_checkpoint as original

    def cut_meanwhile(index: object) -> object:
        path.write_bytes(path.read_bytes()[:-1])
        return original(index)  # type: ignore[arg-type]

    monkeypatch.setattr("torchgauge.weights.scanner.plan_checkpoint", cut_meanwhile)
    assert main(["weights", str(path), "--json", "-o", str(tmp_path / "rows.jsonl")]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    ((name, reason),) = [row.values() for row in found["weight_summary"]["failures"]]
    assert f"{name} could not be read" in err
    assert "truncated" in reason
    assert sum("mean" in row for row in found["weights"]) == len(varied_tensors()) - 1
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {line["name"] for line in lines} == varied_tensors().keys()


def test_two_checkpoints_are_compared_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = {"a": torch.ones(10), "b": torch.ones(10), "c": torch.ones(2)}
    new = {"a": torch.ones(10), "b": torch.ones(10) * 2, "d": torch.ones(3)}
    for name, tensors in (("old", old), ("new", new)):
        save_file(tensors, tmp_path / f"{name}.safetensors")
    paths = [str(tmp_path / "new.safetensors"), "--against", str(tmp_path / "old.safetensors")]
    assert main(["weights", *paths, "-o", str(tmp_path / "x.against.csv")]) == 0
    out, _ = capsys.readouterr()
    assert "Identical  1  tensors, 40 B" in out
    assert "Changed    1  1 added, 1 removed, 0 reshaped, 0 retyped" in out
    rows = list(csv.DictReader((tmp_path / "x.against.csv").read_text().splitlines()))
    assert [(row["state"], row["name"]) for row in rows] == [("changed", "b"), ("added", "d"), ("removed", "c")]
    assert float(rows[0]["relative_l2"]) == 1.0
    found = document(capsys, "weights", *paths)
    assert found["against"]["changed"][0]["name"] == "b"  # type: ignore[index]
    assert "mean" not in found["weights"][0]  # type: ignore[index]
    both = document(capsys, "weights", *paths, "--weights")
    assert both["weights"][0]["mean"] == 1.0  # type: ignore[index]
    assert both["against"] == found["against"]


def test_a_comparison_with_nothing_is_wrong_usage(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", str(checkpoint), "-o", "x.against.csv"]) == 2
    assert "--against B" in capsys.readouterr().err
    assert main(["weights", str(checkpoint), "--against", "no/such/file.pt"]) == 1
    assert "there is no file 'no/such/file.pt'" in capsys.readouterr().err


def test_reading_weights_does_not_import_torch(checkpoint: Path) -> None:
    code = "import sys; sys.modules['torch'] = None\nfrom torchgauge.cli import main\nsys.exit(main(sys.argv[1:]))"
    for options in (["--no-deep"], ["--deep", "--json"], ["--against", str(checkpoint)]):
        run = subprocess.run(
            [sys.executable, "-c", code, "weights", str(checkpoint), *options],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert "ModuleNotFoundError" not in run.stderr


def test_an_analysis_of_a_file_has_the_figures_of_its_weights(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    torch.save(net.state_dict(), tmp_path / "net.pt")
    found = tg.analyze(tmp_path / "net.pt")
    row = next(row for row in found.weights if row.name == "0.weight")
    weight = net.state_dict()["0.weight"]
    assert row.max == weight.max().item()
    assert row.spectral_norm == pytest.approx(torch.linalg.matrix_norm(weight, 2).item(), rel=1e-5)
    assert tg.analyze(tmp_path / "net.pt", weights=False).weight_summary is None


def test_a_live_model_is_read_where_it_is_when_asked() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    net[2].weight = nn.Parameter(torch.randn(4, 4).t())
    assert tg.analyze(net, input_size=(2, 3)).weights == []
    found = tg.analyze(net, input_size=(2, 3), weights=True)
    rows = {row.name: row for row in found.weights}
    assert rows.keys() == {name for name, _ in (*net.named_parameters(), *net.named_buffers())}
    weight = net.state_dict()["0.weight"].double()
    assert rows["0.weight"]["mean"] == pytest.approx(weight.mean().item(), rel=1e-9)
    assert rows["0.weight"]["role"] == "parameter"
    assert rows["1.running_var"]["zeros"] == 0
    assert found.weight_summary is not None
    assert found.weight_summary["total"]["elements"] == sum(p.numel() for p in net.parameters())


def test_parameters_on_the_meta_device_have_no_values() -> None:
    net = nn.Linear(3, 4, device="meta")
    rows = tg.analyze(net, input_size=(2, 3), weights=True).weights
    assert all("no values" in row["skipped"] for row in rows)


@pytest.mark.parametrize("arguments", [{"weights": "yes"}, {"deep": 1}, {"deep": False, "spectrum": True}])
def test_a_switch_that_is_none_is_wrong_usage(arguments: dict[str, object], checkpoint: Path) -> None:
    with pytest.raises(UsageError):
        tg.scan_weights(checkpoint, **arguments)  # type: ignore[arg-type]


def test_progress_shows_the_share_the_rate_and_the_time_left() -> None:
    times = iter([0.0, 10.0, 10.0])
    transfer = Transfer("scanning", clock=lambda: next(times))
    assert transfer.line(5 << 30, 20 << 30, "w") == "scanning: 5.00 GiB of 20.0 GiB (25.0 %), 0.54 GB/s, 30 s left; w"
    assert transfer.line(0, 20 << 30, "") == "scanning: 0 B of 20.0 GiB (0.0 %); "


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (61, "1 min 1 s"), (3 * 3600 + 130, "3 h 2 min")]
)
def test_the_time_left_is_rounded(seconds: float, text: str) -> None:
    assert format_left(seconds) == text


def test_of_a_truncated_file_the_rest_is_analysed_and_the_lost_tensors_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.safetensors"
    save_file({f"layer{i}.weight": torch.randn(8, 8) for i in range(10)}, path)
    path.write_bytes(path.read_bytes()[: -8 * 256 + 10])
    for command in (["weights"], []):
        assert main([*command, str(path), "--json"]) == 1
        reported = capsys.readouterr()
        rows = {row["name"]: row for row in json.loads(reported.out)["weights"]}
        assert sorted(name for name, row in rows.items() if row.get("std")) == ["layer0.weight", "layer1.weight"]
        assert all(f"layer{i}.weight" in reported.err for i in range(2, 10))
        assert reported.err.count(".weight could not be read: ") == 5


def test_a_saved_scan_can_be_loaded_and_rendered_again(checkpoint: Path, tmp_path: Path) -> None:
    found = tg.scan_weights(checkpoint)
    found.save(tmp_path / "w.json")
    again = tg.load(tmp_path / "w.json")
    assert isinstance(again, tg.WeightScan)
    assert again.to_dict() == json.loads((tmp_path / "w.json").read_text())
    assert str(again) == str(found)
