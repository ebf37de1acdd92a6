"""The cluster of `--dask local:N`: no other user of the machine reaches its processes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.weights.checkpoints import assert_same, facts, write_varied
from torchgauge.checkpoint import open_checkpoint
from torchgauge.cli import main
from torchgauge.facts.weights import open_scheduler
from torchgauge.weights import Cluster, FileReader, ScanRequest, scan, stamp_files

pytest.importorskip("distributed")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")


def listening() -> set[object]:
    """Network addresses of this process and those that it started."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return {(process.pid, one.laddr) for process in processes for one in process.net_connections("inet")}


BEFORE = set[object]()  # servers of other tests in this process


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    BEFORE.update(listening())
    with Cluster("local:2", FileReader(stamp_files([]))) as pool:
        yield pool


def socket_folder(cluster: Cluster) -> Path:
    return Path(cluster.client.scheduler_info(n_workers=0)["address"].removeprefix("unix://").rpartition(":")[0])


def test_no_process_of_the_cluster_listens_on_a_port(cluster: Cluster) -> None:
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    assert set(cluster.client.run(os.getpid).values()) <= {process.pid for process in processes}
    assert listening() <= BEFORE


def test_only_the_user_may_enter_the_folder_of_the_sockets(cluster: Cluster) -> None:
    folder = socket_folder(cluster)
    sockets = [path for path in folder.iterdir() if stat.S_ISSOCK(path.stat().st_mode)]
    assert len(sockets) >= 3, "the scheduler's and two workers'"
    assert {stat.S_IMODE(path.stat().st_mode) for path in sockets} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_cannot_connect(cluster: Cluster) -> None:
    path = next(path for path in socket_folder(cluster).iterdir() if stat.S_ISSOCK(path.stat().st_mode))
    code = (
        f"import os, socket; os.setgid(65534); os.setuid(65534); socket.socket(socket.AF_UNIX).connect({str(path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr
    allowed = code.replace("os.setgid(65534); os.setuid(65534); ", "")
    assert subprocess.run([sys.executable, "-c", allowed], check=False).returncode == 0


def test_a_scan_gives_the_result_of_threads_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    index = open_checkpoint(write_varied(tmp_path / "model.safetensors"))
    assert_same(facts(scan(index, ScanRequest(dask="local:2"))), facts(scan(index, ScanRequest(threads=2))))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("address", "is_open"),
    [
        ("tcp://host:8786", True),
        ("host:8786", True),
        ("ws://host:1", True),
        ("tls://host:8786", False),
        ("wss://host:1", False),
        ("local:4", False),
        (None, False),
    ],
)
def test_a_scheduler_without_tls_is_named(address: str | None, is_open: bool) -> None:
    assert bool(open_scheduler(address)) == is_open


def test_a_command_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torchgauge.weights.cluster.CONNECT_TIMEOUT_S", 0.3)
    path = write_varied(tmp_path / "model.safetensors")
    assert main(["weights", str(path), "--dask", "tcp://127.0.0.1:1"]) == 1
    first, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("torchgauge: warning: the connection to the Dask scheduler tcp://127.0.0.1:1 is neither")
