"""Suggestions for misspelt arguments, and files that are refused before torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torchgauge.cli import main

NET = """\
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 4))
"""
BLOCK = """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["resnet50"], "Did you mean timm:resnet50 or torchvision:resnet50?"),
        (["ResNet50"], "Did you mean timm:resnet50 or torchvision:resnet50?"),
        (["efficientnet_b7"], "torchvision:efficientnet_b7"),
        (["vgg61"], "timm:vgg16"),
        (["resnet50.a1_in1k"], "Did you mean timm:resnet50.a1_in1k?"),
        (["gpt2"], "Did you mean hf:gpt2?"),
        (["LlamaForCausalLN"], "hf:LlamaForCausalLM"),
        (["net"], "Did you mean net.py"),
        (["nett.py"], "there is no file 'nett.py'. Did you mean net.py?"),
        (["someone/some-model"], "download its config.json first"),
        (["net.py:Nett"], "Did you mean 'Net'?"),
        (["analyse"], "Did you mean the command 'analyze'?"),
        (["compare", "net.py", "resnet18"], "Did you mean timm:resnet18 or torchvision:resnet18?"),
    ],
)
def test_the_likely_intention_is_named(
    argv: list[str], meant: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) in (1, 2)
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["net.py", "--profil"], "Did you mean --profile?"),
        (["net.py", "--bacth=4"], "Did you mean --batch?"),
        (["weights", "a.pt", "--agianst"], "Did you mean --against?"),
        (["analyse", "net.py"], "Did you mean the command 'analyze'?"),
        (["wieghts", "a.pt"], "Did you mean the command 'weights'?"),
    ],
)
def test_a_misspelt_option_or_command_is_wrong_usage(
    argv: list[str], meant: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(argv)
    assert leaving.value.code == 2
    assert meant in capsys.readouterr().err


def test_a_python_file_with_one_model_class_needs_no_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["net.py"]) == 0
    assert "net.py:Net" in capsys.readouterr().out.splitlines()[0]


def test_of_several_models_in_a_file_all_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "net.py").write_text(NET + BLOCK)
    assert main(["net.py"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == ["  net.py:Net", "  net.py:Block (needs arguments: width)"]


def test_a_class_that_needs_arguments_gives_way_to_the_model_the_file_builds(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "net.py").write_text(NET.replace("(self)", "(self, width)").replace("(8,", "(width,") + "model = Net(8)")
    assert main(["net.py"]) == 0
    assert "net.py:model" in capsys.readouterr().out.splitlines()[0]


def test_a_file_without_models_names_a_function(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "net.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(8, 4)\n")
    assert main(["net.py"]) == 1
    assert (
        "defines no torch.nn.Module: give the function that builds it, such as net.py:build" in capsys.readouterr().err
    )
    assert main(["net.py:build"]) == 0


FOREIGN = {
    "empty.pt": (b"", "empty.pt is an empty file"),
    "text.pt": (b"hello world\n", "it looks like a text file"),
    "image.pt": (b"\x89PNG\r\n\x1a\n" + bytes(99), "it looks like a PNG image"),
    "page.pt": (b"<!doctype html><p>", "a web page"),
    "binary.pt": (bytes(range(255, 128, -1)), "binary data in an unknown format"),
    "zeros.pt": (bytes(999), "a file of zeros"),
    "pointer.pt": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "a Git LFS pointer"),
}


def test_files_of_another_kind_are_refused_before_torch_is_imported(folder: Path) -> None:
    """One process for every command on every file: nothing before may have imported torch either."""
    for name, (content, _) in FOREIGN.items():
        (folder / name).write_bytes(content)
    commands = {"analyze": [], "weights": [], "compare": ["{name}"], "check": ["--max", "params=1"]}
    code = f"""
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from torchgauge.cli import main
answers = []
for command, extra in {commands!r}.items():
    for name in {list(FOREIGN)!r}:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
            status = main([command, name, *(word.format(name=name) for word in extra)])
        answers.append((command, name, status, said.getvalue(), "torch" in sys.modules))
print(json.dumps(answers))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=True)
    answers = json.loads(done.stdout)
    assert len(answers) == len(commands) * len(FOREIGN)
    for command, name, status, said, has_torch in answers:
        assert (status, has_torch) == (1, False), (command, name, said)
        assert FOREIGN[name][1] in said, (command, name, said)


def test_an_unknown_name_is_refused_before_torch_is_imported(folder: Path) -> None:
    code = "import sys\nfrom torchgauge.cli import main\nmain(['resnet50'])\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=folder)


def test_a_text_pickle_is_not_taken_for_text(folder: Path) -> None:
    import pickle

    import torch

    from torchgauge.checkpoint import refuse_foreign_file

    torch.save({"a.weight": torch.ones(2)}, "legacy.pt", pickle_protocol=0, _use_new_zipfile_serialization=False)
    (folder / "words.pkl").write_bytes(pickle.dumps({"a": 1}, protocol=0))
    for name in ("legacy.pt", "words.pkl"):
        refuse_foreign_file(str(folder / name))
