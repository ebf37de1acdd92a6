"""The cache folder of each system, and files that are replaced whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from torchgauge.cache import cache_folder, replace_file

PLACES = ("TORCHGAUGE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA")


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "home/.cache/torchgauge"),
        ("linux", {"XDG_CACHE_HOME": "xdg"}, "xdg/torchgauge"),
        ("darwin", {"XDG_CACHE_HOME": "xdg"}, "home/Library/Caches/torchgauge"),
        ("win32", {}, "home/AppData/Local/torchgauge"),
        ("win32", {"LOCALAPPDATA": "local"}, "local/torchgauge"),
        ("win32", {"LOCALAPPDATA": "local", "TORCHGAUGE_CACHE": "mine"}, "mine"),
    ],
)
def test_the_cache_folder_is_where_the_system_keeps_caches(
    platform: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    assert cache_folder() == Path(expected)


def test_a_replacement_that_fails_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = tmp_path / "kept"
    final.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no room"):
        replace_file(final, b"new")
    assert final.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [final]


def test_a_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"old")
    replace_file(tmp_path / "kept", b"new")
    assert (tmp_path / "kept").read_bytes() == b"new"
