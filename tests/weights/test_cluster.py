from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.weights.checkpoints import assert_same, facts, write_varied
from torchgauge.checkpoint import open_checkpoint
from torchgauge.errors import MissingDependencyError, TorchgaugeError, UsageError
from torchgauge.weights import Cluster, FileReader, LiveTensors, ScanRequest, scan, stamp_files

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def local() -> Iterator[Any]:
    # Any free port: without an address two clusters at once, one for each pytest worker, want the same one.
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as running:
        yield running


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_varied(tmp_path / "model.safetensors")


@pytest.mark.parametrize("deep", [False, True])
def test_two_workers_give_the_same_result_as_threads(
    local: Any, checkpoint: Path, deep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchgauge.weights.plan.PIECE_BYTES", 16_384)
    index = open_checkpoint(checkpoint)
    found = scan(index, ScanRequest(deep=deep, dask=local.scheduler_address))
    assert_same(facts(found), facts(scan(index, ScanRequest(deep=deep, threads=2))))
    assert found.threads == 2


def test_a_failure_on_a_worker_is_one_of_the_tensor(local: Any, checkpoint: Path) -> None:
    index = open_checkpoint(checkpoint)
    last = max(index.entries, key=lambda entry: entry.offset or 0)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    found = scan(index, ScanRequest(dask=local.scheduler_address))
    assert [name for name, _ in found.failures] == [last.name]
    assert len(found.rows) == len(index.entries) - 1


def test_a_killed_worker_costs_time_only(local: Any, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.weights.plan.PIECE_BYTES", 2048)
    monkeypatch.setattr("torchgauge.weights.plan.BATCH_PIECES", 1)
    index = open_checkpoint(checkpoint)
    killed: list[int] = []

    def kill_one(done: int, total: int, part: str) -> None:
        if not killed and done > total // 4:
            killed.append(next(iter(local.workers.values())).pid)
            os.kill(killed[0], signal.SIGKILL)

    found = scan(index, ScanRequest(dask=local.scheduler_address), progress=kill_one)
    assert killed
    assert_same(facts(found), facts(scan(index, ScanRequest())))


def test_a_file_that_workers_do_not_see_is_told_before_the_work(local: Any, checkpoint: Path) -> None:
    stamps = stamp_files([str(checkpoint)])
    checkpoint.unlink()
    unseen = pytest.raises(TorchgaugeError, match=r"does not see the same .*model\.safetensors")
    with unseen, Cluster(local.scheduler_address, FileReader(stamps)):
        pass


def test_an_address_where_nobody_answers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.weights.cluster.CONNECT_TIMEOUT_S", 0.3)
    silent = pytest.raises(TorchgaugeError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:1'")
    with silent, Cluster("tcp://127.0.0.1:1", FileReader({})):
        pass


@pytest.mark.parametrize("address", ["local:", "local:0", "local:many", "ftp://host:1"])
def test_a_malformed_address_is_wrong_usage(address: str) -> None:
    with pytest.raises(UsageError), Cluster(address, FileReader({})):
        pass


def test_the_weights_of_a_live_model_are_not_sent_to_a_cluster() -> None:
    import torch

    with pytest.raises(UsageError, match="a cluster can only read files"):
        Cluster("local:2", LiveTensors(torch.nn.Linear(2, 2)))


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(MissingDependencyError, match=r"pip install torchgauge\[dask\]"),
        Cluster("local:2", FileReader({})),
    ):
        pass


def test_ctrl_c_is_left_to_who_started_the_workers() -> None:
    with Cluster("local:1", FileReader(stamp_files([]))) as pool:
        handlers = pool.client.run(signal.getsignal, signal.SIGINT)
    assert list(handlers.values()) == [signal.SIG_IGN]
