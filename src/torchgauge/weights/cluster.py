"""Run a scan on a Dask cluster: the same pieces in the same order, so the same result.

When a worker dies, its tasks are given to others.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import ExitStack
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Generic, Self

from torchgauge.errors import MissingDependencyError, TorchgaugeError, UsageError
from torchgauge.interpreter import safe_path_of_children
from torchgauge.weights.reader import FileReader, FileStamp, Reader
from torchgauge.weights.threads import Item, Result

if TYPE_CHECKING:
    import distributed

CONNECT_TIMEOUT_S = 10.0
# Give up if there has been no worker for this long.
NO_WORKERS_TIMEOUT_S = 60.0
# How often a task may kill its worker or get lost before the scan fails.
RETRIES = 5
_POLL_S = 1.0
# The path of a Unix socket has at most 103 bytes on macOS, 107 on Linux.
_LONGEST_FOLDER = 60
# Network file systems store modification times with a lower resolution.
_MTIME_SLACK_NS = 2_000_000_000


class Cluster:
    """A pool of Dask workers. `address` is that of a scheduler, or `local:N` for N processes on this machine."""

    def __init__(self, address: str, reader: Reader, threads: int | None = None) -> None:
        if not isinstance(reader, FileReader):
            raise UsageError("a cluster can only read files; the weights of a live model are in this process")
        self._address, self._threads = address, threads
        self._files = FileReader(reader.stamps, drop_cache=reader.drop_cache, slack_ns=_MTIME_SLACK_NS)
        self._stack = ExitStack()
        self.client: distributed.Client = None
        self.count = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.client = stack.enter_context(_connect(self._address, self._threads, stack))
            workers = self.client.scheduler_info(n_workers=-1)["workers"]
            self.count = sum(worker["nthreads"] for worker in workers.values())
            if not workers:
                raise TorchgaugeError(f"the cluster at {self._address} has no workers: start some with `dask worker`")
            # Fail early, not after hours: every worker must see the same files.
            answers: dict[str, list[str]] = self.client.run(missing_files, dict(self._files.stamps))
            for worker, missing in answers.items():
                if missing:
                    raise TorchgaugeError(
                        f"worker {worker} does not see the same {missing[0]}: all machines need the files at the same "
                        "path, on a shared file system"
                    )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def max_pending(self) -> int:
        """A scheduler slows down with many futures, and finished results wait in memory."""
        return 4 * max(self.count, 1) + 4

    def submit(self, work: Callable[[Reader, Item], Result], item: Item) -> RemoteResult[Result]:
        return RemoteResult(self.client, work, self._files, item)


class RemoteResult(Generic[Result]):
    """A task on the cluster; it is submitted again if its worker dies."""

    def __init__(
        self, client: distributed.Client, work: Callable[[Reader, Item], Result], files: FileReader, item: Item
    ) -> None:
        self._client, self._arguments = client, (work, files, item)
        self._future = self._submit()

    def _submit(self) -> distributed.Future:
        return self._client.submit(run_task, *self._arguments, pure=False, retries=RETRIES)

    def done(self) -> bool:
        return bool(self._future.done())

    def result(self) -> Result:
        from distributed import KilledWorker

        for _ in range(RETRIES):
            try:
                return self._wait()
            except (KilledWorker, CancelledError):
                self._future = self._submit()
        raise TorchgaugeError(f"the cluster lost the same task {RETRIES} times: do its workers run out of memory?")

    def _wait(self) -> Result:
        no_workers_since: float | None = None
        while True:
            try:
                result: Result = self._future.result(timeout=_POLL_S)
                return result
            except TimeoutError:
                if self._client.scheduler_info(n_workers=1)["workers"]:
                    no_workers_since = None
                    continue
            if self._client.status == "closed":
                raise TorchgaugeError("lost the connection to the cluster; continue the scan with --resume")
            no_workers_since = no_workers_since or time.monotonic()
            if time.monotonic() - no_workers_since > NO_WORKERS_TIMEOUT_S:
                raise TorchgaugeError("all workers of the cluster are gone; continue the scan with --resume")


def run_task(work: Callable[[Reader, Item], Result], files: FileReader, item: Item) -> Result:
    with files:
        return work(files, item)


def dask_setup(worker: object) -> None:
    """Called in each local worker. Ctrl-C reaches the whole process group; the parent stops the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def missing_files(stamps: dict[str, FileStamp]) -> list[str]:
    """Run by each worker: files that are missing or have another size."""
    return [file for file, stamp in stamps.items() if not os.path.isfile(file) or os.path.getsize(file) != stamp.size]


def _connect(address: str, threads: int | None, stack: ExitStack) -> distributed.Client:
    try:
        import distributed
    except ImportError:
        raise MissingDependencyError("distributed", "a scan on a Dask cluster") from None
    if address.startswith("local:"):
        count = address.removeprefix("local:")
        if not count.isdecimal() or not int(count):
            raise UsageError(f"'{address}': write local:N with the number of processes, such as local:4")
        if not hasattr(socket, "AF_UNIX"):
            raise UsageError(f"'{address}' needs Unix sockets: use --threads, or start a Dask cluster")
        from torchgauge.weights.unix_sockets import local_cluster

        # Workers are new interpreters, which libraries start.
        stack.enter_context(safe_path_of_children())
        # A folder that only this user may enter.
        short = gettempdir() if len(gettempdir()) < _LONGEST_FOLDER else "/tmp"
        folder = stack.enter_context(TemporaryDirectory(prefix="torchgauge-", dir=short))
        cluster = stack.enter_context(local_cluster(folder, int(count), threads or 1, preload=__name__))
        address = str(cluster.scheduler_address)
    try:
        return distributed.Client(address, timeout=CONNECT_TIMEOUT_S)
    except (OSError, TimeoutError) as error:
        raise TorchgaugeError(
            f"no Dask scheduler answers at '{address}' within {CONNECT_TIMEOUT_S:.0f} s: {error}"
        ) from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"'{address}' is not the address of a Dask scheduler (tcp://host:8786): {error}") from error
