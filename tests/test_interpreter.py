"""New interpreters import nothing from the working folder."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from torchgauge.cache import is_private
from torchgauge.interpreter import python_command, python_environment, safe_path_of_children

NAME = "PYTHONSAFEPATH"


@pytest.fixture
def decoy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module of Python's own name."""
    monkeypatch.delenv(NAME, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit(77)\n")
    return tmp_path


@pytest.mark.parametrize("entry", ["", ".", "relative"])
def test_relative_places_are_left_out(entry: str, decoy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interactive interpreter has an empty one."""
    (decoy / "relative").mkdir()
    (decoy / "relative" / "json.py").write_text("raise SystemExit(77)\n")
    monkeypatch.syspath_prepend(entry)
    unguarded = subprocess.run([sys.executable, "-c", "import json"], check=False)
    assert unguarded.returncode == 77
    command = python_command("-c", "import json")
    assert subprocess.run(command, env=python_environment(), check=False).returncode == 0


def test_modules_that_the_user_imported_from_the_working_folder_are_found(
    decoy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (decoy / "users_own.py").touch()
    monkeypatch.syspath_prepend("")
    command = python_command("-c", "import users_own, json")
    assert subprocess.run(command, env=python_environment(), check=False).returncode == 0


def test_interpreters_that_libraries_start_are_safe_too(decoy: Path) -> None:
    command = [sys.executable, "-c", "import json"]
    with safe_path_of_children():
        assert subprocess.run(command, check=False).returncode == 0
    assert subprocess.run(command, check=False).returncode == 77


@pytest.mark.parametrize("before", [None, "", "1"])
def test_the_environment_is_restored_when_the_last_thread_is_done(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if before is not None:
        monkeypatch.setenv(NAME, before)
    inside, outside = threading.Event(), threading.Event()

    def other() -> None:
        with safe_path_of_children():
            inside.set()
            outside.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    with safe_path_of_children():
        outside.set()
        thread.join()
        assert os.environ[NAME] == "1"
    assert os.environ.get(NAME) == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_a_place_is_private_if_nobody_else_can_write_to_it_or_replace_it(tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    file = inner / "file"
    file.touch()
    assert is_private(inner)
    assert is_private(file)
    for place in (file, inner, inner.parent):
        mode = place.stat().st_mode
        place.chmod(mode | 0o002)
        assert not is_private(file)
        place.chmod(mode)
    inner.parent.chmod(0o1777)
    assert is_private(inner), "as in /tmp, where nobody can rename the folders of others"
    assert not is_private(inner.parent)
    assert not is_private(inner / "missing")
    link = tmp_path / "link"
    link.symlink_to(inner)
    inner.chmod(0o777)
    assert not is_private(link)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root gives files away")
def test_a_place_of_another_user_is_not_private(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    place.mkdir()
    os.chown(place, 65534, 65534)
    assert not is_private(place)
    os.chown(place, 0, 65534)
    place.chmod(0o775)
    assert not is_private(place), "another group may write"
