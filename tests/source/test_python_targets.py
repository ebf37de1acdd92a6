from __future__ import annotations

import importlib.util
import os
import pickle
import py_compile
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import torchgauge.checkpoint
import torchgauge.isolation.process
from torchgauge.analysis.options import stored_path
from torchgauge.cli import main
from torchgauge.errors import FormatError, TargetError, UsageError
from torchgauge.source import resolve
from torchgauge.source.target_check import python_target

pytestmark = pytest.mark.usefixtures("random_state_is_left_alone")

CODE = """
from __future__ import annotations
import random
from dataclasses import dataclass
import torch
from torch import nn

random.random()

@dataclass
class Options:
    width: int = 3

class Net(nn.Module):
    def __init__(self, options: Options | None = None):
        super().__init__()
        self.linear = nn.Linear(2, (options or Options()).width)

    def forward(self, x):
        return self.linear(x)

    class Inner(nn.Identity):
        pass

class Wide(nn.Module):
    def __init__(self, width, depth, bias=True):
        super().__init__()

def build():
    return Net(Options(5))

def build_wide(width, *args, **kwargs):
    return Net(Options(width))

def forgets():
    return {"model": Net()}

def breaks():
    raise KeyError("no such layer")

def leaves():
    raise SystemExit(3)

model = Net(Options(7))
number = 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(CODE)
    return path


@pytest.mark.parametrize(("name", "width"), [("Net", 3), ("build", 5), ("model", 7)])
def test_a_file_gives_a_class_a_factory_or_an_instance(file: Path, name: str, width: int) -> None:
    source = resolve(f"{file}:{name}")
    model: Any = source.runnable
    assert model.linear.out_features == width
    assert model.linear.weight.device.type == "cpu"
    assert (source.record.name, source.record.kind, source.record.files) == (f"{file}:{name}", "module", (str(file),))


def test_a_dotted_name_leads_into_a_class(file: Path) -> None:
    assert isinstance(resolve(f"{file}:Net.Inner").runnable, nn.Identity)


def test_a_name_for_reports_replaces_the_targets_own(file: Path) -> None:
    assert resolve(f"{file}:Net", name="mine").record.name == "mine"


def test_a_live_model_is_its_own_source() -> None:
    with torch.device("meta"):
        model = nn.Sequential()
    source = resolve(model)
    assert source.runnable is model
    assert (source.record.name, source.record.kind) == ("Sequential", "module")


def test_loading_leaves_the_search_path_unchanged(file: Path) -> None:
    before, finders = list(sys.path), list(sys.meta_path)
    resolve(f"{file}:Net")
    with pytest.raises(TargetError):
        resolve(f"{file}:breaks")
    assert sys.path == before
    assert sys.meta_path == finders


def test_two_files_of_one_name_with_neighbours_of_one_name_do_not_mix(tmp_path: Path) -> None:
    for folder, width in (("a", 2), ("b", 6)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net_parts.py").write_text(f"width = {width}")
        (tmp_path / folder / "net.py").write_text(
            "from net_parts import width\nfrom torch import nn\n\n\ndef build():\n    return nn.Linear(1, width)\n"
        )
    widths = [resolve(f"{tmp_path / folder / 'net.py'}:build").runnable.out_features for folder in ("a", "b", "a")]
    assert widths == [2, 6, 2]


def test_a_module_of_the_current_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "zoo_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text("width = 4")
    (package / "nets.py").write_text("from torch import nn\nfrom .parts import width\nmodel = nn.Linear(1, width)\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    source = resolve("zoo_of_a_test.nets:model")
    assert source.runnable.out_features == 4
    assert source.record.name == "zoo_of_a_test.nets:model"
    assert sys.path == before


def test_an_installed_module_is_found() -> None:
    assert isinstance(resolve("torch.nn:Identity").runnable, nn.Identity)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nett", "there is no 'Nett' in .* Did you mean 'Net'"),
        ("Net.Iner", "there is no 'Iner' in .* Did you mean 'Inner'"),
        ("Wide", r"'Wide' in .* needs arguments \(width, depth\): write a function without arguments"),
        ("build_wide", r"needs arguments \(width\)"),
        ("forgets", "returned an object of type dict"),
        ("number", "is of type int: neither a model nor code"),
        ("breaks", r"failed while it built the model \(line 39\): KeyError: 'no such layer'"),
        ("leaves", r"failed while it built the model \(line 42\): SystemExit: 3"),
    ],
)
def test_a_name_that_gives_no_model_is_a_target_error(file: Path, name: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        resolve(f"{file}:{name}")


def test_a_missing_file_is_a_target_error_with_the_closest_name(file: Path) -> None:
    with pytest.raises(TargetError, match=r"there is no file .*net\.py'\. Did you mean 'nets\.py'"):
        resolve(f"{file.parent / 'net.py'}:Net")
    with pytest.raises(TargetError, match="there is no file"):
        resolve("no/such/folder/net.py:Net")


def test_a_file_that_fails_names_the_line_and_leaves_no_module(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("x = 1\ny = x / 0\n")
    known = set(sys.modules)
    with pytest.raises(TargetError, match=r"failed while it was loaded \(line 2\): ZeroDivisionError"):
        resolve(f"{path}:Net")
    assert set(sys.modules) == known


def test_a_file_of_a_package_is_pointed_to_the_module_form(tmp_path: Path) -> None:
    path = tmp_path / "part.py"
    path.write_text("from .other import Net\n")
    with pytest.raises(TargetError, match=r"give it as package\.module:Name"):
        resolve(f"{path}:Net")


def test_a_missing_module_is_a_target_error() -> None:
    with pytest.raises(TargetError, match="there is no module 'no_such_package' here"):
        resolve("no_such_package.nets:Net")


def test_a_module_that_misses_another_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy_module_of_a_test.py").write_text("import no_such_dependency\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TargetError, match=r"failed while it was imported: ModuleNotFoundError: .*no_such_dependency"):
        resolve("needy_module_of_a_test:Net")


def test_a_file_or_folder_that_holds_no_model_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="an empty folder"):
        resolve(str(tmp_path))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"")
    with pytest.raises(FormatError, match=r"model\.safetensors is an empty file"):
        resolve(str(weights))


@pytest.mark.parametrize("text", ["model.pt", "weights/model", "./a.safetensors"])
def test_a_missing_file_is_reported(text: str) -> None:
    with pytest.raises(TargetError, match=f"there is no file '{text}'"):
        resolve(text)


def test_a_python_file_with_several_models_asks_for_one(file: Path) -> None:
    with pytest.raises(UsageError, match=r"several models; give one of them:\n.*nets\.py:Net\n"):
        resolve(str(file))


@pytest.mark.parametrize("text", ["", "zzz", "timm:", "hf:", ":", "a b:c", "nets.py:", "nets.py:a-b"])
def test_another_form_is_a_usage_error_that_lists_the_forms(text: str) -> None:
    with pytest.raises(UsageError, match=r"file\.py:Name, package\.module:Name .* timm:NAME, torchvision:NAME, hf:"):
        resolve(text)


def test_a_class_in_place_of_a_model_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="the class Linear; pass an instance"):
        resolve(nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a dict"):
        resolve({})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("net.py:Net", ("net.py", "Net")),
        ("net.py:Nets.Inner", ("net.py", "Nets.Inner")),
        ("missing.py:Net", ("missing.py", "Net")),
        ("net.py", ("net.py", "")),
        ("latin.py", ("latin.py", "")),
        ("folder.py", None),
        ("weights.py", None),
        ("zipped.py", None),
        ("pickled.py", None),
        ("both.py:Net", None),
        ("other.py:x.safetensors", None),
        ("missing.py", None),
        ("net.py:", None),
        ("net.py:a b", None),
        ("model.safetensors", None),
        ("package.module:Net", None),
    ],
)
def test_python_files_are_told_from_models_by_form_and_content(
    text: str, found: tuple[str, str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("class Net: ...\n" * 400 + "# é")
    Path("latin.py").write_bytes("# coding: latin-1\n# é\n".encode("latin-1"))
    Path("folder.py").mkdir()
    save_file({"weight": torch.ones(2)}, "weights.py")
    torch.save({"weight": torch.ones(2)}, "zipped.py")
    Path("pickled.py").write_bytes(pickle.dumps({"weight": [1.0]}, protocol=2))
    Path("both.py").write_text("")
    for name in ("both.py:Net", "other.py:x.safetensors"):
        save_file({"weight": torch.ones(2)}, name)
    assert python_target(text) == found
    assert (stored_path(text) is None) == (found is not None or not Path(text).exists())


@pytest.mark.parametrize("command", [[], ["weights"], ["llm"], ["fit"], ["compare"], ["check", "--max", "params=9"]])
@pytest.mark.parametrize("name", ["model.py", "folder.py", "a.py:model", "hf:folder.py"])
def test_a_model_whose_name_looks_like_code_is_read_in_isolation(
    name: str, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.py").mkdir()
    for place in ("model.py", "folder.py/model.safetensors", "a.py:model"):
        save_file({"weight": torch.ones(3, 3)}, place)
    Path("folder.py/config.json").write_text("{}")
    targets = [name, name] if command == ["compare"] else [name]
    readers: list[Any] = []
    original = torchgauge.isolation.process.run_isolated

    def run_isolated(*args: Any, **kwargs: Any) -> bytes:
        readers.append(kwargs["subject"])
        return original(*args, **kwargs)

    monkeypatch.setattr("torchgauge.isolation.run_isolated", run_isolated)
    monkeypatch.setattr("torchgauge.checkpoint.open_checkpoint", forbidden_outside(os.getpid()))
    main([*command[:1], *targets, *command[1:], "--no-progress"])
    assert set(readers) == {name.removeprefix("hf:")}
    assert "outside" not in capsys.readouterr().err


def forbidden_outside(process: int) -> Any:
    original = torchgauge.checkpoint.open_checkpoint

    def open_checkpoint(*args: Any, **kwargs: Any) -> Any:
        assert os.getpid() != process, "opened outside the isolation"
        return original(*args, **kwargs)

    return open_checkpoint


def test_a_python_file_is_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "net.py"
    file.write_text("raise SystemExit(77)\n")
    assert main(["weights", str(file), "--no-progress"]) == 1
    assert "is not a PyTorch model" in capsys.readouterr().err


def test_siblings_come_before_installed_packages_for_their_own_folder_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a script; but a library that is imported meanwhile gets the modules that it was written for."""
    site = tmp_path / "site"
    site.mkdir()
    for name in ("both_have", "library"):
        (site / f"{name}.py").write_text("from both_have import PLACE\n" if name == "library" else "PLACE = 'site'\n")
    (site / "package_only").mkdir()
    (site / "package_only" / "__init__.py").write_text("PLACE = 'site'\n")
    project = tmp_path / "project"
    (project / "package_only").mkdir(parents=True)  # data, perhaps: not a package
    (project / "both_have.py").write_text("PLACE = 'project'\n")
    (project / "only_here.py").write_text("PLACE = 'project'\n")
    (project / "lazy.py").write_text("import only_here, package_only, torch\n")
    code = (
        "import torch, library{}, lazy\nclass Net(torch.nn.Linear):\n    def __init__(self): super().__init__(1, 1)\n"
    )
    monkeypatch.syspath_prepend(str(site))
    before = list(sys.path), list(sys.meta_path)
    names = ("both_have", "library", "only_here", "package_only", "lazy")
    for first in ("", ", both_have"):
        (project / "net.py").write_text(code.format(first))
        resolve(f"{project / 'net.py'}:Net")
        assert sys.modules["library"].PLACE == "site"
        assert sys.modules["only_here"].PLACE == "project"
        assert sys.modules["package_only"].PLACE == "site"
        for name in names:
            sys.modules.pop(name, None)
    (project / "net.py").write_text(code.replace("library{}", "both_have"))
    resolve(f"{project / 'net.py'}:Net")
    assert sys.modules["both_have"].PLACE == "project"
    for name in names:
        sys.modules.pop(name, None)
    assert (list(sys.path), list(sys.meta_path)) == before


def test_a_named_module_comes_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, width in (("site", 1), ("project", 2)):
        (tmp_path / folder).mkdir()
        code = f"import torch\ndef net():\n    return torch.nn.Linear({width}, 1)\n"
        (tmp_path / folder / "named_twice.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path / "project")
    model: Any = resolve("named_twice:net").runnable
    sys.modules.pop("named_twice")
    assert model.in_features == 2


SCRIPT = """
import argparse
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, {option})
args = parser.parse_args()
net = nn.Linear(2, args.width)
"""


def test_a_script_that_needs_arguments_is_told_to_keep_them_out_of_the_import(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(option="required=True"))
    with pytest.raises(TargetError, match=r"was loaded \(line 6\): it parses the command line"):
        resolve(f"{tmp_path}/train.py:net")


def test_a_script_whose_arguments_have_defaults_gets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["torchgauge", "train.py:net", "--json"]
    monkeypatch.setattr(sys, "argv", arguments)
    (tmp_path / "train.py").write_text(SCRIPT.format(option="default=5"))
    model: Any = resolve(f"{tmp_path}/train.py:net").runnable

    assert model.out_features == 5
    assert sys.argv is arguments


@pytest.mark.parametrize("body", ["self.a = nn.Linear(2, 2)", "self.width = 3"])
def test_a_constructor_without_the_call_of_its_base_is_named_as_that(body: str, tmp_path: Path) -> None:
    code = f"from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        {body}\n"
    (tmp_path / "net.py").write_text(code)
    with pytest.raises(TargetError, match=r"__init__\(\) must call super\(\).__init__\(\) before") as caught:
        resolve(f"{tmp_path}/net.py:Net")
    assert ("(line 4)" in str(caught.value)) == ("nn" in body)


def test_a_file_runs_as_it_reads_whatever_was_compiled_beside_it(tmp_path: Path) -> None:
    source, hidden = tmp_path / "net.py", tmp_path / "hidden.py"
    source.write_text("import torch\ndef net():\n    return torch.nn.Linear(1, 1)\n")
    hidden.write_text("raise SystemExit(77)\n")
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(hidden), importlib.util.cache_from_source(str(source)), invalidation_mode=unchecked)
    assert isinstance(resolve(f"{source}:net").runnable, nn.Linear)
