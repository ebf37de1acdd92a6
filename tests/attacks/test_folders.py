"""Commands that are started in a hostile folder, and read one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.attacks.decoys import marking, plant, plant_entry_points, plant_modules, plant_numba_cache
from torchgauge.weights.kernels import jit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the decoys use calls of Linux")

SCRIPT = [str(Path(sys.executable).with_name("torchgauge"))]
MODULE = [sys.executable, "-m", "torchgauge"]
NET = """
import torch
from sibling import WIDTH
class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(WIDTH, 4))
"""


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, marks: Path) -> Path:
    """Models in a folder full of decoys."""
    return filled(tmp_path_factory.mktemp("hostile"), marks)


@pytest.fixture(scope="module")
def hostile_to_options(tmp_path_factory: pytest.TempPathFactory, marks: Path) -> Path:
    """The same without decoys of the modules that Python imports for `python -m`, before the named module starts."""
    probe = tmp_path_factory.mktemp("probe")
    (probe / "probe.py").write_text("import sys\nprint(*sys.modules)\n")
    imported = run_in(probe, [sys.executable, "-m", "probe"]).stdout.split()
    folder = filled(tmp_path_factory.mktemp("hostile"), marks)
    for name in {name.partition(".")[0] for name in imported}:
        (folder / f"{name}.py").unlink(missing_ok=True)
    return folder


def filled(folder: Path, marks: Path) -> Path:
    plant(folder, marks)
    save_file({"layer.weight": torch.randn(64, 64), "layer.bias": torch.randn(64)}, folder / "small.safetensors")
    save_file({f"w{number}": torch.randn(600, 600) for number in range(2)}, folder / "large.safetensors")
    torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU())).save(folder / "script.pt")
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_embd": 32, "n_head": 2}
    config |= {"vocab_size": 100, "bos_token_id": 1, "eos_token_id": 1, "n_positions": 64}
    config["auto_map"] = {"AutoConfig": "modeling_decoy.Config", "AutoModelForCausalLM": "modeling_decoy.Model"}
    model = folder / "gpt2"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    (model / "modeling_decoy.py").write_text(marking("modeling_decoy", marks))
    plant_modules(model, marks)
    (folder / "net.py").write_text(NET)
    (folder / "sibling.py").write_text("WIDTH = 8\n")
    return folder


def run_in(folder: Path, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """The interpreter finds torchgauge and the packages, and nothing on the way shields the working folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    found = os.pathsep.join(path for path in sys.path if "site-packages" in path or path.endswith("src"))
    environment = kept | {"PYTHONPATH": found, "PYTHONDONTWRITEBYTECODE": "1"} | variables
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


def require_no_marks(done: subprocess.CompletedProcess[str], marks: Path, status: int = 0) -> None:
    found = sorted(mark.name for mark in marks.iterdir())
    for mark in marks.iterdir():
        mark.unlink()
    assert found == [], done.stderr[-2000:]
    assert "the decoy" not in done.stderr, done.stderr[-2000:]
    assert done.returncode == status, done.stderr[-2000:]


COMMANDS = {
    "analyze": ["small.safetensors"],
    "weights": ["weights", "large.safetensors"],
    "cluster": ["weights", "large.safetensors", "--dask", "local:1"],
    "check": ["check", "small.safetensors", "--max", "params=1G"],
    "system": ["system"],
    "trained": ["script.pt", "--input", "1x8", "--inference", "--mode", "train"],
    "code": ["net.py:Net", "--input", "1x8"],
    "module": ["net:Net", "--input", "1x8"],
}
SLOW = {
    "compare": ["compare", "small.safetensors", "large.safetensors"],
    "fit": ["fit", "script.pt", "--input", "1x8", "--on", "h200"],
    "forecast": ["forecast", "script.pt", "--input", "1x8", "--on", "h200"],
    "demo": ["demo"],
    "half": ["script.pt", "--input", "1x8", "--inference", "--dtype", "bfloat16"],
    "llm": ["llm", "gpt2"],
    "config": ["gpt2", "--inference"],
    "profiled": ["script.pt", "--input", "1x8", "--profile"],
    "calibrated": ["system", "--calibrate"],
    "compiled": ["net.py:Net", "--input", "1x8", "--execution", "compiled", "--inference"],
    "verified": ["net.py:Net", "--input", "1x8", "--verify"],
}


def slow(*names: str) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", [*COMMANDS, *slow(*SLOW)])
def test_nothing_in_the_working_folder_runs(name: str, hostile: Path, marks: Path) -> None:
    options = [*(COMMANDS | SLOW)[name], "--no-progress"]
    require_no_marks(run_in(hostile, [*SCRIPT, *options]), marks)


@pytest.mark.parametrize("name", ["analyze", *slow("weights", "cluster", "trained", "code", "module", *SLOW)])
def test_nothing_in_the_working_folder_runs_with_python_m(name: str, hostile_to_options: Path, marks: Path) -> None:
    options = [*(COMMANDS | SLOW)[name], "--no-progress"]
    require_no_marks(run_in(hostile_to_options, [*MODULE, *options]), marks)


def test_a_folders_own_configuration_names_code_in_vain(hostile: Path, marks: Path) -> None:
    require_no_marks(run_in(hostile, [*SCRIPT, "check"]), marks, status=2)


def test_nothing_in_the_working_folder_runs_in_the_python_interface(hostile: Path, marks: Path) -> None:
    program = """
import torchgauge as tg
tg.scan_weights("large.safetensors")
tg.analyze("script.pt", input_size=(1, 8), inference=True, mode="train", budget_s=0.1)
tg.fit("script.pt", input_size=(1, 8), on="h200")
"""
    # Without -P, Python itself would import the decoys before torchgauge starts.
    require_no_marks(run_in(hostile, [sys.executable, "-P", "-c", program]), marks)


def test_decoy_modules_fire_without_the_protection(hostile: Path, marks: Path) -> None:
    for program in ("import numba", "import pickle"):
        assert run_in(hostile, [sys.executable, "-c", program]).returncode == 99
    assert {"numba", "pickle"} <= {mark.name for mark in marks.iterdir()}
    for mark in marks.iterdir():
        mark.unlink()


def test_decoy_caches_fire_without_the_protection(tmp_path: Path, marks: Path) -> None:
    plant_numba_cache(tmp_path, marks)
    module, _, name = next(iter(jit._ENTRIES)).rpartition(".")
    program = f"""
import numba.core.caching as caching
from {module} import {name}
caching.FunctionCache({name}.py_func)._cache_file.load("any")
"""
    assert run_in(tmp_path, [sys.executable, "-P", "-c", program]).returncode == 99
    (marks / "numba_cache").unlink()


def test_decoy_packages_fire_without_the_protection(tmp_path: Path, marks: Path) -> None:
    plant_entry_points(tmp_path, marks)
    assert run_in(tmp_path, [sys.executable, "-c", "import torch"]).returncode == 99
    (marks / "decoy_entry").unlink()


def test_python_finds_the_decoy_of_torchgauge_itself_unless_told_otherwise(tmp_path: Path, marks: Path) -> None:
    """What the documentation says about `python -m torchgauge`: Python chooses before torchgauge starts."""
    (tmp_path / "torchgauge.py").write_text(marking("torchgauge", marks))
    assert run_in(tmp_path, [*MODULE, "--version"]).returncode == 99
    (marks / "torchgauge").unlink()
    require_no_marks(run_in(tmp_path, [sys.executable, "-P", *MODULE[1:], "--version"]), marks)
    require_no_marks(run_in(tmp_path, [*SCRIPT, "--version"]), marks)
