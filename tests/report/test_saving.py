"""A report is written whole or not at all, and the error says why."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import stat
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from tests.report.sample import sample_view
from torchgauge.cli import main
from torchgauge.errors import TorchgaugeError, UsageError
from torchgauge.report import FORMATS, find_format, load_renderers, render, render_bytes, renderer, save, write_whole

POSIX = pytest.mark.skipif(os.name == "nt", reason="needs devices, pipes and permissions of a Unix")


@pytest.fixture
def full_device(tmp_path: Path) -> Path:
    """A file name that leads to a device on which nothing fits."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    path = tmp_path / "report.json"
    path.symlink_to("/dev/full")
    return path


@pytest.fixture
def binary_format() -> Any:
    renderer("blob", suffix=".blob")(lambda view, options: b"\x00\xff")
    yield
    del FORMATS["blob"]


@POSIX
def test_a_full_device_is_one_clear_error(full_device: Path) -> None:
    with pytest.raises(TorchgaugeError, match=r"cannot write '.*report\.json': No space left on device"):
        save(sample_view(), full_device)
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode), "the device itself was replaced"


def test_a_disk_that_fills_while_writing_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text("old")

    def pieces() -> Iterator[bytes]:
        yield b"half of it"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(TorchgaugeError, match="No space left on device"):
        write_whole(path, pieces())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.txt"]


@POSIX
def test_a_folder_that_may_not_be_written_is_one_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    if os.access(tmp_path, os.W_OK):
        tmp_path.chmod(0o755)
        pytest.skip("the superuser may write everywhere")
    try:
        with pytest.raises(TorchgaugeError, match=r"cannot write .*: Permission denied"):
            save(sample_view(), tmp_path / "run.json")
        assert os.listdir(tmp_path) == []
    finally:
        tmp_path.chmod(0o755)


def test_a_folder_that_refuses_the_draft_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, mode: str) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(TorchgaugeError, match=r"cannot write .*: Read-only file system"):
        save(sample_view(), tmp_path / "run.json")
    assert os.listdir(tmp_path) == []


def _folder(path: Path) -> None:
    path.mkdir()


def _endless_link(path: Path) -> None:
    path.symlink_to(path)


@POSIX
@pytest.mark.parametrize("make", [_folder, _endless_link])
def test_an_unwritable_name_is_one_clear_error(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    make(path)
    with pytest.raises(TorchgaugeError, match="cannot write"):
        save(sample_view(), path)
    assert os.listdir(tmp_path) == ["run.json"]


@pytest.mark.parametrize("place", ["missing/run.json", "file/run.json"])
def test_the_command_line_ends_with_status_1_where_there_is_no_folder(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    code = tmp_path / "code.py"
    code.write_text("from torch import nn\nmodel = nn.Linear(4, 2)\n")
    assert main([f"{code}:model", "--input", "1x4", "--quiet", "-o", str(tmp_path / place)]) == 1
    assert "torchgauge: error: cannot write" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"file", "code.py"}


def test_a_name_as_long_as_a_file_may_have_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * (255 - len(".json")) + ".json")
    save(sample_view(), path)
    assert path.stat().st_size > 0


@POSIX
def test_a_pipe_gets_the_report_and_stays_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    os.mkfifo(path)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()))
    reader.start()
    save(sample_view(), path)
    reader.join()
    assert received == [render_bytes(sample_view(), "json")]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_text_and_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "é\n")
    write_whole(tmp_path / "b", b"\x00\xff")
    assert (tmp_path / "a").read_bytes() == "é\n".encode()
    assert (tmp_path / "b").read_bytes() == b"\x00\xff"


@pytest.mark.usefixtures("binary_format")
def test_a_binary_format_is_saved_but_not_printed(tmp_path: Path) -> None:
    save(sample_view(), tmp_path / "run.blob")
    assert (tmp_path / "run.blob").read_bytes() == b"\x00\xff"
    with pytest.raises(UsageError, match="'blob' is binary: write it to a file"):
        render(sample_view(), "blob")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A package that offers one format, and another whose module is gone."""
    (tmp_path / "its_reports.py").write_text(
        "from torchgauge.report import renderer\n"
        "@renderer('names', suffix='.names')\n"
        "def render_names(view, options):\n"
        "    return view.modules[1].path\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    offered = EntryPoints(
        EntryPoint(name, module, "torchgauge.renderers") for name, module in (("names", "its_reports"), ("old", "gone"))
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: offered.select(group=group))
    load_renderers.cache_clear()
    yield
    FORMATS.pop("names", None)
    load_renderers.cache_clear()


@pytest.mark.usefixtures("installed")
def test_an_installed_package_adds_a_format_by_an_entry_point() -> None:
    with pytest.warns(UserWarning, match=r"format 'old' \(gone\) does not load: No module named 'gone'"):
        assert find_format("a.names").name == "names"
    assert render(sample_view(), "names") == "stem"
