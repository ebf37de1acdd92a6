"""Every command and every function opens every malicious file; nothing in them runs."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import torchgauge as tg
from tests.checkpoint.malicious import CORPUS, call, legacy_file, shell, torch_archive
from torchgauge.cli import main

CODE = "from torch import nn\n\ndef build():\n    return nn.Linear(2, 2)\n"
WAYS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda body: body,
    "archive": torch_archive,
    "legacy": legacy_file,
    "beside": lambda body: torch_archive(tensor_body(), **{"config.p": body}),
}


def tensor_body() -> bytes:
    buffer = io.BytesIO()
    torch.save({}, buffer)
    with zipfile.ZipFile(buffer) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "canary"
    yield str(path)
    assert not path.exists(), "something in the file was executed"


def run_quietly(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main(argv)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return status, out + err


def commands(path: Path, code: str) -> list[list[str]]:
    return [
        [str(path)],
        ["analyze", str(path), "--as", code],
        ["weights", str(path)],
        ["weights", str(path), "--as", code],
    ]


def open_file(path: Path, name: str, way: str, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(WAYS[way](CORPUS[name](str(path.parent / "canary"))))
    status, output = run_quietly(commands(path, f"{path.parent / 'nets.py'}:build")[number], capsys)
    assert status in (0, 1), name
    # A file that does not fit the code, or is not a model, is an error; one that opens lists the danger.
    assert status == 1 or "dangerous" in output, name


@pytest.mark.usefixtures("canary")
@pytest.mark.parametrize("way", WAYS)
def test_no_command_runs_what_is_in_a_file(tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every file is stored in every way and opened by every command, though not by every command in every way."""
    (tmp_path / "nets.py").write_text(CODE)
    for place, name in enumerate(CORPUS):
        open_file(tmp_path / "model.pt", name, way, (place + list(WAYS).index(way)) % 4, capsys)


@pytest.mark.slow
@pytest.mark.usefixtures("canary")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", range(4))
def test_no_command_runs_what_is_in_a_file_in_any_combination(
    tmp_path: Path, way: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nets.py").write_text(CODE)
    for name in CORPUS:
        open_file(tmp_path / "model.pt", name, way, number, capsys)


def test_no_function_runs_what_is_in_a_file(tmp_path: Path, canary: str) -> None:
    path = tmp_path / "model.pt"
    for name, make in CORPUS.items():
        path.write_bytes(torch_archive(make(canary)))
        for opens in (tg.analyze, tg.scan_weights, tg.load):
            try:
                opens(path)
            except tg.FormatError:
                continue
            assert opens is not tg.load, name


def test_a_hostile_shard_or_rank_is_opened_by_every_command(
    tmp_path: Path, canary: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        torch.save({"w": torch.ones(2)}, tmp_path / f"consolidated.{rank:02}.pth")
        with zipfile.ZipFile(tmp_path / f"consolidated.{rank:02}.pth", "a") as archive:
            archive.writestr("evil.pkl", call("os", "system", shell(canary)))
    for argv in ([str(tmp_path)], ["weights", str(tmp_path)]):
        status, output = run_quietly(argv, capsys)
        assert status == 0
        assert "os.system" in output


@pytest.mark.parametrize(("command", "reported"), [([], "aten::save"), (["weights"], "2 elements in 1 tensor")])
def test_scripted_code_that_writes_a_file_does_not_run(
    tmp_path: Path, canary: str, command: list[str], reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Writer(torch.nn.Module):
        def __init__(self, path: str) -> None:
            super().__init__()
            self.path = path
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.save(x, self.path)
            return x * self.weight

    torch.jit.script(Writer(canary)).save(tmp_path / "model.pt")
    status, output = run_quietly([*command, str(tmp_path / "model.pt")], capsys)
    assert status == 0
    assert reported in output


UNKNOWN = {
    "a PNG image": b"\x89PNG\r\n\x1a\n" + bytes(64),
    "an ELF program": b"\x7fELF\x02\x01\x01" + bytes(64),
    "an ONNX model": b"\x08\x08\x12\x07pytorch" + bytes(64),
    "an HDF5 file": b"\x89HDF\r\n\x1a\n" + bytes(64),
    "a TensorFlow SavedModel": b"\x08\x01\x12\xd0\x03\n\x9e\x01" + bytes(64),
    "a pickle of a dict, without tensors": b"\x80\x04}X\x01\x00\x00\x00aK\x01s.",
    "an empty file": b"",
    "a text file": b"some words\n" * 20,
    "a 7z archive": b"7z\xbc\xaf\x27\x1c\x00\x04" + bytes(64),
}


@pytest.mark.parametrize("command", [[], ["analyze"], ["weights"]])
@pytest.mark.parametrize("words", UNKNOWN)
def test_the_message_says_what_the_file_looks_like(
    tmp_path: Path, words: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(UNKNOWN[words])
    status, output = run_quietly([*command, str(path)], capsys)
    assert status == 1
    reported = "is an empty file" if words == "an empty file" else f"is not a PyTorch model: it looks like {words}"
    assert output.startswith(f"torchgauge: error: {path} {reported}")
    assert output.count("\n") == 1


def test_a_folder_without_weights_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"")
    for argv in ([str(tmp_path)], ["weights", str(tmp_path)]):
        status, output = run_quietly(argv, capsys)
        assert (status, "a TensorFlow SavedModel" in output) == (1, True)


def test_the_modules_of_the_corpus_were_not_imported_for_it() -> None:
    assert "idlelib.run" not in sys.modules
    assert "antigravity" not in sys.modules
