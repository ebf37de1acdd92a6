from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from torchgauge.errors import MissingDependencyError, TargetError
from torchgauge.source import import_optional, pretended_absent


def test_a_missing_package_says_how_to_install_it() -> None:
    with pytest.raises(MissingDependencyError, match="a test needs the package 'no_such_package': install it with"):
        import_optional("no_such_package.models", "a test")


def test_a_package_that_misses_another_names_that_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy_package_of_a_test.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match="'no_such_dependency'"):
        import_optional("needy_package_of_a_test", "a test")


def test_a_package_that_does_not_import_is_a_target_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_package_of_a_test.py").write_text("raise RuntimeError('operator does not exist')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TargetError, match="is installed but does not import: operator does not exist"):
        import_optional("broken_package_of_a_test", "a test")


def test_a_package_that_looks_absent_can_be_imported_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heavy_package_of_a_test.py").write_text("size = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pretended_absent("heavy_package_of_a_test", "sys"):
        assert importlib.util.find_spec("heavy_package_of_a_test") is None
        assert sys.modules["sys"] is sys  # imported before: it stays
    assert import_optional("heavy_package_of_a_test", "a test").size == 3
    monkeypatch.delitem(sys.modules, "heavy_package_of_a_test")
