"""Self-contained messages: in a notebook, and for packages that are not installed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from torchgauge.errors import EXTRAS, FormatError, ForwardError, MissingDependencyError, TargetError


def test_a_notebook_shows_the_message_alone() -> None:
    error = TargetError("there is no file 'a\x1b[31m.pt'")
    assert error._render_traceback_() == ["TargetError: there is no file 'a\\x1b[31m.pt'"]
    assert ForwardError("it failed", "in fc1", module="fc1")._render_traceback_() == [
        "ForwardError: it failed",
        "in fc1",
    ]
    assert FormatError("a\nb")._render_traceback_() == [r"FormatError: a\nb"], "a name starts no line of its own"


def test_a_missing_package_names_the_extra_that_brings_it() -> None:
    assert "pip install torchgauge[dask]" in str(MissingDependencyError("distributed", "a scan on a Dask cluster"))
    assert "pip install einops" in str(MissingDependencyError("einops", "the target"))


def test_the_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name not in ("dev", "docs")}
    assert all(package in EXTRAS for needs in extras.values() for package in needs)
    # `dask` itself comes with `distributed`.
    assert all(package in extras[extra] or package == extra for package, extra in EXTRAS.items())


@pytest.mark.parametrize("package", EXTRAS)
def test_every_extra_is_one_command(package: str) -> None:
    assert f"`pip install torchgauge[{EXTRAS[package]}]`" in str(MissingDependencyError(package, "this"))
