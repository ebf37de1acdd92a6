"""Archives are read only after their code was found harmless: whatever they hold, no canary file appears."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg
from tests.torchscript.archives import Doubles, rewritten, saved
from tests.torchscript.models import Branching, Hybrid, Listed, figures
from torchgauge.source import load_exported, load_torchscript
from torchgauge.source.torchscript import scan_code

# What torch says of nn.Transformer when it scripts it.
pytestmark = pytest.mark.filterwarnings("ignore:'norm' was found in ScriptModule constants")


class InForward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.save(x, "canary")
        return x


class InOther(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x

    @torch.jit.export
    def never_called(self, x: Tensor) -> None:
        torch.save([x], "canary")


def write(x: Tensor) -> Tensor:
    torch.save(x, "canary")
    return x


class InFunction(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return write(x)


class InFork(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.jit.wait(torch.jit.fork(write, x))


class WhenRead(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x

    @torch.jit.export
    def __getstate__(self) -> tuple[bool, int]:
        return self.training, 1

    @torch.jit.export
    def __setstate__(self, state: tuple[bool, int]) -> None:
        self.training = state[0]
        torch.save(torch.ones(1), "canary")


class LoopsWhenRead(WhenRead):
    @torch.jit.export
    def __setstate__(self, state: tuple[bool, int]) -> None:
        self.training = state[0]
        x = torch.ones(1)
        while bool(x.sum() > 0):
            x = x + 1


class FromFile(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.from_file("/etc/hostname", size=1)


@pytest.mark.parametrize(
    "build", [InForward, InOther, InFunction, InFork, WhenRead, LoopsWhenRead, FromFile], ids=lambda kind: kind.__name__
)
def test_an_archive_that_acts_outside_the_model_is_refused(build: Any, folder: Path) -> None:
    path = saved(build(), folder)
    with pytest.raises(tg.FormatError, match=r"model\.pt.*(save|from_file|__setstate__)"):
        load_torchscript(path)
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ('x.save("canary")', "save"),
        ('ops.aten.save(x, "canary")', "aten::save"),
        ('getattr(torch, "save")(x, "canary")', "getattr"),
        ("ops.evil.run(x)", "evil::run"),
        ("torch.no_such_op(x)", "aten::no_such_op"),
        ("ops.prim.rpc_async(x)", "prim::rpc_async"),
        ("__torch__.torch.classes.evil.Thing(x)", "evil.Thing"),
        ("torch.mul(x, )))", "SyntaxError"),
    ],
)
def test_source_that_reaches_outside_is_refused_in_every_spelling(call: str, said: str, folder: Path) -> None:
    path = saved(Doubles(), folder)
    changed = rewritten(path, lambda text: text.replace("torch.mul(x, 2)", call))
    with pytest.raises(tg.FormatError, match=said):
        load_torchscript(changed)
    assert {item.name for item in folder.iterdir()} == {"model.pt", "changed.pt"}


def test_an_unchanged_copy_is_read(folder: Path) -> None:
    path = rewritten(saved(Doubles(), folder), lambda text: text)
    assert tg.analyze(load_torchscript(path), input_size=(2, 3)).totals.flops == 6


@pytest.mark.parametrize(
    "alias",
    ["annotate = torch.mul\n    annotate(x, 2)", "ops.quantized.run(x)", "y = x + x\n    for i in x:\n      y = y"],
)
def test_code_that_runs_while_reading_may_only_unpack(alias: str, folder: Path) -> None:
    source = f"  def __setstate__(self, x: Tensor) -> NoneType:\n    {alias}\n    return None\n"
    path = rewritten(saved(Doubles(), folder), lambda text: text + source)
    with pytest.raises(tg.FormatError, match="__setstate__"):
        load_torchscript(path)


@pytest.mark.parametrize(("build", "size"), [(Hybrid, (1, 3, 32, 32)), (Listed, (2, 8)), (Branching, (3, 4))])
def test_an_archive_has_the_figures_of_the_model_it_was_made_from(build: Any, size: Any, folder: Path) -> None:
    model = torch.jit.script(build())
    torch.jit.save(model, folder / "model.pt")
    read = tg.analyze(load_torchscript(folder / "model.pt"), input_size=size)
    assert figures(read) == figures(tg.analyze(model, input_size=size))


class LooksAtData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if bool(x.sum() > 0) else x


def test_a_model_from_a_file_is_never_run_for_real(folder: Path) -> None:
    assert tg.analyze(torch.jit.script(LooksAtData()), inputs=torch.ones(1, 2)).capture.run.mode == "real"
    model = load_torchscript(saved(LooksAtData(), folder))
    with pytest.raises(tg.ForwardError, match="a model from a file is not run for real"):
        tg.analyze(model, inputs=torch.ones(1, 2))


class Endless(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        count = 0
        while count >= 0:
            count += 1
        return x


class Huge(nn.Module):
    def forward(self, x: Tensor) -> int:
        return len([0] * 1000000000000)


@pytest.mark.parametrize("build", [Endless, Huge])
def test_a_graph_without_end_is_given_up(build: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.capture.script.compiler.LOOP_LIMIT", 1000)
    with pytest.raises(tg.ForwardError, match=r"did not end|elements"):
        tg.analyze(load_torchscript(saved(build(), folder)), input_size=(1,))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"PK\x03\x04PTMF" + bytes(64), b"no archive at all"])
def test_other_files_are_reported_as_not_an_archive(content: bytes, folder: Path) -> None:
    (folder / "model.pt").write_bytes(content)
    with pytest.raises(tg.FormatError, match=r"model\.pt"):
        load_torchscript(folder / "model.pt")


def test_an_archive_cut_anywhere_is_refused(folder: Path) -> None:
    content = saved(Doubles(), folder).read_bytes()
    cut = folder / "cut.pt"
    for part in range(1, 20):
        cut.write_bytes(content[: len(content) * part // 20])
        with pytest.raises(tg.FormatError):
            load_torchscript(cut)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(tg.FormatError, match=r"cannot read 'nowhere\.pt'"):
        load_torchscript("nowhere.pt")


@pytest.mark.parametrize("name", ["elsewhere/code.py", "model/code/\udcff.py", "data.pkl"])
@pytest.mark.parametrize("load", [load_torchscript, load_exported])
def test_a_record_outside_the_root_or_without_a_readable_name_is_one_clear_error(
    name: str, load: Callable[[str], Any], folder: Path
) -> None:
    path = str(saved(Doubles(), folder))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("0" * len(os.fsencode(name)), "")
    content = Path(path).read_bytes().replace(b"0" * len(os.fsencode(name)), os.fsencode(name))
    Path(path).write_bytes(content)
    with pytest.raises(tg.FormatError, match=r"model\.pt"):
        load(path)


@pytest.mark.parametrize("depth", [900, 3000])
def test_a_long_chain_of_attributes_is_read_or_one_clear_error(depth: int) -> None:
    try:
        scan_code(b"x" + b".a" * depth, "'model.pt'")
    except tg.FormatError as error:
        assert "cannot be read" in str(error)  # noqa: PT017 how deep Python's own parser goes differs
