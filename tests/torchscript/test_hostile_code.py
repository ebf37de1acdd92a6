"""Tricks that aim past the scan of an archive's code: nothing runs, nothing is written or printed, by any command."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg
from tests.torchscript.archives import Doubles, rewritten, saved
from torchgauge.cli import main
from torchgauge.cost.registry import REGISTRY
from torchgauge.source import load_torchscript, require_allowed


class HasState(nn.Module):
    """Whatever its `__setstate__` holds runs when torch reads the archive."""

    def forward(self, x: Tensor) -> Tensor:
        return x

    @torch.jit.export
    def __getstate__(self) -> tuple[bool, int]:
        return self.training, 1

    @torch.jit.export
    def __setstate__(self, state: tuple[bool, int]) -> None:
        self.training = state[0]


def with_state(model: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), model)


def hidden_in_a_branch(x: Tensor) -> Tensor:
    if x.dim() == 99:
        torch.save(x, "canary")
    return x


class InBranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return hidden_in_a_branch(x) * 2


class InLoop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(x.dim() - 99):
            torch.save(x, "canary")
        return x


@torch.jit.script
class Writer:
    def __init__(self) -> None:
        self.name = "canary"

    def write(self, x: Tensor) -> None:
        torch.save(x, self.name)


class InClass(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        Writer().write(x)
        return x


class InPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(InBranch())

    def forward(self, x: Tensor) -> Tensor:
        return x


ENCODED = """
    y = "+ACIAIgAi-"
    torch.save(1, "canary")
    z = "+ACIAIgAi-"
"""


def in_another_encoding(text: str) -> str:
    """To a reader that trusts the first line, the call is inside triple quotes."""
    before, line, after = text.partition("    self.training = ")
    return f"# coding: utf-7\n{before}{ENCODED.lstrip(chr(10))}{line}{after}" if line else text


def act_when_read(text: str) -> str:
    before, line, after = text.partition("    self.training = ")
    return f'{before}    torch.save(1, "canary")\n{line}{after}' if line else text


def unchanged(text: str) -> str:
    return text


ARCHIVES = [
    pytest.param(InBranch, unchanged, id="branch"),
    pytest.param(InLoop, unchanged, id="loop"),
    pytest.param(InClass, unchanged, id="class"),
    pytest.param(InPart, unchanged, id="uncalled-part"),
    pytest.param(HasState, act_when_read, id="reading"),
    pytest.param(lambda: with_state(HasState()), act_when_read, id="reading-a-part"),
    pytest.param(HasState, in_another_encoding, id="encoding"),
]


@pytest.mark.parametrize(("build", "change"), ARCHIVES)
@pytest.mark.parametrize("command", [["analyze"], ["weights"], []], ids=["analyze", "weights", "bare"])
def test_no_command_lets_an_archive_write_a_file(
    build: Callable[[], nn.Module], change: Callable[[str], str], command: list[str], folder: Path
) -> None:
    path = rewritten(saved(build(), folder), change)
    before = set(folder.iterdir())
    assert main([*command, str(path), "--no-progress"]) == 0
    assert set(folder.iterdir()) == before


@pytest.mark.parametrize(("build", "change"), ARCHIVES)
def test_the_code_is_refused_before_torch_reads_the_archive(
    build: Callable[[], nn.Module], change: Callable[[str], str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rewritten(saved(build(), folder), change)
    monkeypatch.setattr(torch.jit, "load", lambda *args, **kwargs: pytest.fail("torch read the archive"))
    with pytest.raises(tg.FormatError, match=r"changed\.pt.*(save|__setstate__)"):
        load_torchscript(path)


def test_the_encoding_trick_would_work_on_torch_itself(folder: Path) -> None:
    """Else the case above proves nothing."""
    torch.jit.load(rewritten(saved(HasState(), folder), in_another_encoding))
    assert (folder / "canary").exists()


def default(text: str) -> Callable[[str], str]:
    return lambda code: code.replace("x: Tensor) -> Tensor", f"x: Tensor, y: {text}) -> Tensor")


DEFAULTS = ["Tensor=torch.zeros([3])", "str=torch.mul('a', 1000)", "List[int]=[1] * 1000", "int=torch.len([1])"]


@pytest.mark.parametrize("text", DEFAULTS)
def test_a_default_that_would_be_computed_while_reading_is_refused(text: str, folder: Path) -> None:
    with pytest.raises(tg.FormatError, match="a default"):
        load_torchscript(rewritten(saved(Doubles(), folder), default(text)))


def test_torch_itself_would_compute_a_default(folder: Path) -> None:
    """Else the case above proves nothing."""
    module = torch.jit.load(rewritten(saved(Doubles(), folder), default(DEFAULTS[0])))
    assert "CPUFloatType{3}" in str(module.forward.schema)


@pytest.mark.parametrize("text", ["float=-1.5", "complex=1.+2.j", "List[int]=[1, 2]", "Optional[Tensor]=None"])
def test_a_default_that_is_a_value_is_read(text: str, folder: Path) -> None:
    load_torchscript(rewritten(saved(Doubles(), folder), default(text)))


@pytest.mark.parametrize("name", ["_c", "_modules", "__class__", "__getattr__"])
def test_a_member_in_the_place_of_what_python_needs_is_refused(name: str, folder: Path) -> None:
    def change(code: str) -> str:
        return code.replace("  training : bool\n", f"  training : bool\n  {name} : int\n")

    with pytest.raises(tg.FormatError, match="defines the reserved member"):
        load_torchscript(rewritten(saved(Doubles(), folder), change))


def test_an_object_of_an_unknown_class_is_refused_though_no_code_names_it(folder: Path) -> None:
    path = saved(Doubles(), folder)
    target = path.with_name("changed.pt")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("/data.pkl"):
                content = b"\x80\x02c__torch__.torch\nclasses.evil.Thing\n)\x81}b."
            new.writestr(name, content)
    with pytest.raises(tg.FormatError, match=r"the class evil\.Thing"):
        load_torchscript(target)


class Prints(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        print("from the file", x.dim())
        return self.layer(x)


@torch.jit.script
class Manager:
    def __init__(self) -> None:
        self.entered = 0

    def __enter__(self) -> None:
        self.entered += 1

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.entered -= 1


class PrintsInEngine(Prints):
    """torchgauge does not run a context manager that the file defines."""

    def forward(self, x: Tensor) -> Tensor:
        print("from the file", x.dim())
        with Manager():
            return self.layer(x)


def test_output_of_a_files_code_is_suppressed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tg.analyze(saved(Prints(), folder)).totals.macs == 4
    found = tg.analyze(saved(PrintsInEngine(), folder))
    assert (found.capture.run.mode, found.totals.params > 0) == (None, True)
    assert "does not run in torch" in str(found.capture.run.warnings)
    with pytest.raises(tg.ForwardError, match="does not run in torch"):
        tg.analyze(saved(PrintsInEngine(), folder), inputs=torch.ones(2, 2))
    assert "from the file" not in "".join(capfd.readouterr())


class Formats(nn.Module):
    """TorchScript fills in `{}` and nothing else."""

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        text = "{0.__class__} {} of {}"
        return x, text.format(x.dim(), "two")


def test_a_text_is_filled_in_without_looking_up_attributes(folder: Path) -> None:
    outputs = tg.analyze(saved(Formats(), folder), input_size=(2, 3)).capture.modules[0].outputs
    assert outputs[1] == "{0.__class__} 2 of two"


class GrowsText(nn.Module):
    def forward(self, x: Tensor) -> int:
        text = "0123456789"
        for _ in range(60):
            text = text + text
        return len(text)


class GrowsList(nn.Module):
    def forward(self, x: Tensor) -> int:
        items = [1, 2, 3]
        for _ in range(60):
            items.extend(items)
        return len(items)


class Replaces(nn.Module):
    def forward(self, x: Tensor) -> int:
        text = "aaaaaaaaaa"
        for _ in range(40):
            text = text.replace("a", "aaaaaaaaaa")
        return len(text)


class Joins(nn.Module):
    def forward(self, x: Tensor) -> int:
        text = "ab"
        for _ in range(40):
            text = text.join([text, text, text])
        return len(text)


class Pads(nn.Module):
    def forward(self, x: Tensor) -> int:
        return len("a".ljust(x.shape[0] * 4000000000))


class ExpandsTabs(nn.Module):
    def forward(self, x: Tensor) -> int:
        return len("\t\t".expandtabs(x.shape[0] * 4000000000))


class TakesApart(nn.Module):
    def forward(self, x: Tensor) -> int:
        return len(torch.zeros(400000000).unbind(0))


class Splits(nn.Module):
    def forward(self, x: Tensor) -> int:
        return len(torch.zeros(400000000).split(2))


class Lists(nn.Module):
    def forward(self, x: Tensor) -> int:
        values: list[int] = torch.zeros(1000000000, dtype=torch.int64).tolist()
        return len(values)


class NestedLoops(nn.Module):
    def forward(self, x: Tensor) -> int:
        count = 0
        for _ in range(1000000):
            for _ in range(1000000):
                count += 1
        return count


GROWING = [GrowsText, GrowsList, Replaces, Joins, Pads, ExpandsTabs, TakesApart, Splits, Lists, NestedLoops]


@pytest.mark.parametrize("build", GROWING)
def test_unbounded_growth_is_stopped(
    build: Callable[[], nn.Module], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchgauge.capture.script.compiler.LOOP_LIMIT", 2000)
    with pytest.raises(tg.ForwardError, match=r"did not end|elements|pieces"):
        tg.analyze(saved(build(), folder), input_size=(1,))


class FillsMemory(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.zeros(1 << 55).sum() + torch.ones(1 << 55, dtype=torch.int64).sum()


def test_results_of_a_graph_take_no_memory(folder: Path) -> None:
    assert tg.analyze(saved(FillsMemory(), folder), input_size=(1,)).totals.activation_bytes > 1 << 57


class Endless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        while True:
            x = self.layer(x)
        return x


def test_an_endless_loop_is_tried_with_one_input_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.capture.script.compiler.LOOP_LIMIT", 100)
    with pytest.raises(tg.ForwardError, match=r"did not end$"):
        tg.analyze(saved(Endless(), folder))


class Texts(nn.Module):
    def forward(self, x: Tensor) -> tuple[str, str, str, str, str, str, str]:
        text = "ab" if x.shape[0] > 0 else ""
        tabs = text + "\t" + text
        return (
            text.ljust(5, "*"), text.rjust(5), text.center(6, "-"), text.zfill(4), tabs.expandtabs(4),
            tabs.replace("a", "xyz", 1), "-".join([text, text]),
        )  # fmt: skip


def test_texts_are_changed_as_torch_does(folder: Path) -> None:
    expected = list(torch.jit.script(Texts())(torch.zeros(1)))
    assert tg.analyze(saved(Texts(), folder), input_size=(1,)).capture.modules[0].outputs == expected


class Squares(nn.Module):
    def forward(self, x: Tensor) -> int:
        number = 3
        for _ in range(200):
            number = number * number
        return number


def test_integers_have_64_bits_as_in_torch(folder: Path) -> None:
    expected = torch.jit.script(Squares())(torch.zeros(1))
    assert tg.analyze(saved(Squares(), folder), input_size=(1,)).capture.modules[0].outputs == expected


@pytest.mark.parametrize(
    "op",
    ["aten::_print", "aten::to_here", "prim::PythonOp", "prim::TensorExprGroup", "prim::no_such", "image::write_file"],
)
def test_ops_that_act_outside_or_are_unknown_are_refused(op: str) -> None:
    with pytest.raises(tg.FormatError, match=op):
        require_allowed(op, "a file")


class CallsOwn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.tg_owned.mix(self.layer(x))


@pytest.fixture
def own_op(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.library.Library]:
    """An op of the user's whose real kernel must not run."""
    monkeypatch.setattr("torchgauge.cost.registry.REGISTRY", copy(REGISTRY))

    def refuse(x: Tensor) -> Tensor:
        raise AssertionError("the real kernel ran")

    with torch.library._scoped_library("tg_owned", "DEF") as library:
        library.define("mix(Tensor x) -> Tensor")
        library.impl("mix", refuse, "CPU")
        yield library


def give_formula(op: str) -> None:
    @tg.formula(op, category="elementwise")
    def price(call: tg.Call) -> tg.Work:
        return tg.Work(flops=7 * call.out.numel)


def test_an_op_of_the_users_own_may_be_called_once_it_has_a_formula_and_a_fake_kernel(
    own_op: torch.library.Library, folder: Path
) -> None:
    path = saved(CallsOwn(), folder)
    with pytest.raises(tg.FormatError, match=r"tg_owned::mix.*If it is yours, give it a formula"):
        load_torchscript(path)
    give_formula("tg_owned::mix")
    with pytest.raises(tg.FormatError, match=r"tg_owned::mix.*give it a fake kernel"):
        load_torchscript(path)
    torch.library.register_fake("tg_owned::mix", torch.empty_like, lib=own_op)
    a = tg.analyze(path, input_size=(2, 4))
    assert [(op.op, op.flops) for op in a.ops if op.op.startswith("tg_owned")] == [("tg_owned::mix", 7 * 8)]


def test_an_op_that_this_process_lacks_is_refused_with_where_to_register_it(
    own_op: torch.library.Library,
) -> None:
    give_formula("tg_absent::mix")
    with pytest.raises(tg.FormatError, match=r"register it in the process that reads the file.*new process"):
        require_allowed("tg_absent::mix", "a file")


def test_a_formula_makes_no_op_of_torch_the_users_own(own_op: torch.library.Library) -> None:
    for op in ("c10d::send", "_c10d_functional::all_reduce", "aten::save", "image::write_file"):
        with suppress(ValueError):
            give_formula(op)
        with pytest.raises(tg.FormatError, match=op):
            require_allowed(op, "a file")
