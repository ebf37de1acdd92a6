"""The package is lazy: its names resolve on use, and asking for help loads nothing heavy."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

import torchgauge
from torchgauge import errors
from torchgauge.cli import COMMANDS
from torchgauge.facts import EXECUTIONS

HEAVY = {"torch", "numpy", "pandas", "rich", "torchgauge.facts"}
PROBE = """
import sys
try:
    {code}
except SystemExit:
    pass
print("loaded", *({heavy} & set(sys.modules)))
"""


def loaded_after(code: str) -> set[str]:
    """The heavy packages that are loaded after `code` ran in a fresh interpreter."""
    probe = PROBE.format(code=code, heavy=HEAVY)
    answer = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(answer.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("name", torchgauge.__all__)
def test_an_exported_name_resolves(name: str) -> None:
    assert getattr(torchgauge, name) is not None


def test_every_lazy_name_is_exported() -> None:
    assert {*chain(*torchgauge._HOMES.values()), "__version__"} == set(torchgauge.__all__)
    assert dir(torchgauge) == sorted(torchgauge.__all__)


def packages() -> list[str]:
    """The packages whose names load on first use."""
    root = Path(torchgauge.__file__).parent
    fronts = [path.parent for path in root.rglob("__init__.py") if "_HOMES = {" in path.read_text(encoding="utf-8")]
    return sorted(".".join(("torchgauge", *folder.relative_to(root).parts)) for folder in fronts)


@pytest.mark.parametrize("package", packages())
def test_a_package_offers_what_its_modules_define(package: str) -> None:
    front = importlib.import_module(package)
    lazy = set(chain(*front._HOMES.values()))
    assert lazy <= set(front.__all__)
    assert all(hasattr(front, name) for name in front.__all__)
    # A name that is also a submodule would be the one or the other, depending on what was imported first.
    assert not lazy & {module.name for module in pkgutil.iter_modules(front.__path__)}


def test_every_error_is_exported() -> None:
    tree = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert tree <= set(torchgauge.__all__)


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        _ = torchgauge.analyse


def test_the_probe_sees_a_loaded_package() -> None:
    assert loaded_after("import numpy") == {"numpy"}


@pytest.mark.parametrize(
    "code",
    [
        "import torchgauge",
        "import torchgauge; torchgauge.TorchgaugeError",
        "from torchgauge.cli import main; main(['--help'])",
        "from torchgauge.cli import main; main(['analyze', '--help'])",
        "from torchgauge.cli import main; main(['--version'])",
        "from torchgauge.cli import main; main(['--nonsense'])",
    ],
)
def test_nothing_heavy_loads_for_a_name_or_for_help(code: str) -> None:
    assert loaded_after(code) == set()


def test_the_help_names_every_execution() -> None:
    assert COMMANDS["analyze"].EXECUTIONS == EXECUTIONS


def test_a_saved_capture_renders_without_torch() -> None:
    assert "torch" not in loaded_after("import torchgauge.report, torchgauge.facts, torchgauge.cost")
