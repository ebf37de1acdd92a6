"""A folder of files that do not belong together is listed; nothing in it is taken for the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from torchgauge.checkpoint import open_checkpoint
from torchgauge.checkpoint.signatures import ORIGINAL
from torchgauge.cli import main
from torchgauge.errors import FormatError

STATE = {name: tensor.detach().clone() for name, tensor in nn.Linear(30, 40).state_dict().items()}
PYTHON = "from torch import nn\nclass Net(nn.Module):\n    pass\nclass Wide(Net):\n    pass\nclass Data:\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.save(STATE, tmp_path / "a.pt")
    torch.save({"epoch": 4, "model": STATE}, tmp_path / "best model.pth")
    save_file(STATE, tmp_path / "model.safetensors")
    torch.jit.script(nn.Linear(3, 3)).save(tmp_path / "scripted.pt")
    (tmp_path / "net.py").write_text(PYTHON)
    (tmp_path / "notes.txt").write_text("words")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    (tmp_path / "run-1").mkdir()
    save_file(STATE, tmp_path / "run-1" / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("command", [[], ["weights"]])
def test_each_file_is_told_with_the_command_that_opens_it(
    command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(folder)]) == 1
    first, *lines = capsys.readouterr().err.replace(str(folder), "F").splitlines()
    assert first == "torchgauge: error: F holds several models that do not belong together; choose one:"
    assert [" ".join(line.split()) for line in lines] == [
        "torchgauge F/a.pt torch, 1.24 k parameters",
        "torchgauge 'F/best model.pth' torch, 1.24 k parameters, epoch 4",
        "torchgauge F/model.safetensors safetensors, 1.24 k parameters",
        "torchgauge F/net.py:Net a model class",
        "torchgauge F/net.py:Wide a model class",
        "torchgauge F/run-1 a folder with a model",
        "torchgauge F/scripted.pt torchscript, 12 parameters",
        "not models: a text file, a PNG image",
    ]


def test_folders_of_checkpoints_are_listed_where_there_is_nothing_else(tmp_path: Path) -> None:
    for step in (500, 1000):
        (tmp_path / f"checkpoint-{step}").mkdir()
        save_file(STATE, tmp_path / f"checkpoint-{step}" / "model.safetensors")
    with pytest.raises(FormatError, match=r"checkpoint-1000 +a folder with a model\n.*checkpoint-500 +a folder"):
        open_checkpoint(tmp_path)


def test_checkpoints_of_several_steps_are_listed_and_parts_of_one_model_joined(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    (tmp_path / "parts").mkdir()
    for number in (1, 2):
        torch.save(STATE, tmp_path / "steps" / f"step_{number}.pt")
        save_file({f"layers.{number}.weight": torch.ones(3)}, tmp_path / "parts" / f"part-{number}.safetensors")
    with pytest.raises(FormatError, match=r"step_1\.pt"):
        open_checkpoint(tmp_path / "steps")
    assert len(open_checkpoint(tmp_path / "parts").entries) == 2


def test_one_model_among_files_that_only_look_like_it_is_taken(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(b"")
    index = open_checkpoint(tmp_path)
    assert len(index.entries) == 2
    assert index.warnings == ("files of the folder that are not models: b.pt",)


def test_a_config_says_which_file_is_the_model(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    torch.save(STATE, tmp_path / "extra.pt")
    with pytest.raises(FormatError, match="choose one"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert open_checkpoint(tmp_path).format == "safetensors"


def test_a_name_does_not_act_on_the_terminal_or_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a;rm -rf x.pt", "b\x1b[31m.pt"):
        torch.save(STATE, tmp_path / name)
    assert main([str(tmp_path)]) == 1
    text = capsys.readouterr().err
    assert "\x1b" not in text
    assert f"torchgauge '{tmp_path}/a;rm -rf x.pt'" in text


def test_every_checkpoint_of_a_large_folder_is_counted_as_a_model(tmp_path: Path) -> None:
    for number in range(70):
        save_file(STATE, tmp_path / f"step-{number:03}.safetensors")
    (tmp_path / "notes.txt").write_text("words")
    with pytest.raises(FormatError) as caught:
        open_checkpoint(tmp_path)
    lines = str(caught.value).splitlines()

    assert lines[-2:] == ["  and 40 more", "  not models: a text file"]


def test_formats_that_are_not_read_are_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"\x08\x08\x12\x07pytorch" + bytes(64))
    (tmp_path / "net-2.onnx").write_bytes(b"\x08\x08\x12\x07pytorch" + bytes(64))
    with pytest.raises(FormatError) as caught:
        open_checkpoint(tmp_path)

    assert str(caught.value).splitlines() == [
        f"{tmp_path} holds no PyTorch model:",
        f"  not read: net-2.onnx and 1 more: an ONNX model; {ORIGINAL}",
    ]
