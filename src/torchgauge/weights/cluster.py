"""The same work on a Dask cluster: the same pieces in the same order, so the same result.

A worker that dies costs the time of what it was doing: its tasks are given to others.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import ExitStack
from typing import Any, Generic, Self, TypeVar

from torchgauge.errors import MissingDependencyError, TorchgaugeError, UsageError
from torchgauge.weights.reader import Files, Reader

Item = TypeVar("Item")
Result = TypeVar("Result")

CONNECT_S = 10.0
# Without a single worker for so long, none is coming back.
DESERTED_S = 60.0
# How often a task may take its worker with it, or be lost on the way, before it is its own fault.
RETRIES = 5
_LOOK_S = 1.0
# File systems of other machines keep times less exactly.
_SLACK_NS = 2_000_000_000


class Cluster:
    """`address` is that of a scheduler, or `local:N` for N processes of this machine."""

    def __init__(self, address: str, reader: Reader, threads: int | None = None) -> None:
        if not isinstance(reader, Files):
            raise UsageError("a cluster reads files; the weights of a live model are read where they are")
        self._address, self._threads = address, threads
        self._files = Files(reader.stamps, drops=reader.drops, slack_ns=_SLACK_NS)
        self._stack = ExitStack()
        self.client: Any = None
        self.count = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.client = stack.enter_context(_connect(self._address, self._threads, stack))
            workers = self.client.scheduler_info(n_workers=-1)["workers"]
            self.count = sum(worker["nthreads"] for worker in workers.values())
            if not workers:
                raise TorchgaugeError(f"the cluster at {self._address} has no workers: start some with `dask worker`")
            self._check_files()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def ahead(self) -> int:
        """Futures are few: a scheduler slows down with hundreds of thousands, and results wait in memory."""
        return 4 * max(self.count, 1) + 4

    def submit(self, work: Callable[[Reader, Item], Result], item: Item) -> RemoteResult[Result]:
        return RemoteResult(self.client, work, self._files, item)

    def _check_files(self) -> None:
        """Before hours of work: each worker must see the files, and the same ones."""
        answers: dict[str, list[str]] = self.client.run(unseen_files, dict(self._files.stamps))
        for worker, unseen in answers.items():
            if unseen:
                raise TorchgaugeError(
                    f"the worker {worker} does not see {unseen[0]} as it is here: the files must lie at the same path "
                    "on all machines, on a shared file system"
                )


class RemoteResult(Generic[Result]):
    """A task of the cluster; given again where a worker took it down."""

    def __init__(self, client: Any, work: Callable[[Reader, Any], Result], files: Files, item: Any) -> None:
        self._client, self._arguments = client, (work, files, item)
        self._future = self._start()

    def _start(self) -> Any:
        return self._client.submit(remote, *self._arguments, pure=False, retries=RETRIES)

    def done(self) -> bool:
        return bool(self._future.done())

    def result(self) -> Result:
        from distributed import KilledWorker

        for _ in range(RETRIES):
            try:
                return self._wait()
            except (KilledWorker, CancelledError):
                self._future = self._start()
        raise TorchgaugeError(f"the cluster lost the same task {RETRIES} times: are its workers short of memory?")

    def _wait(self) -> Result:
        deserted_since: float | None = None
        while True:
            try:
                result: Result = self._future.result(timeout=_LOOK_S)
                return result
            except TimeoutError:
                deserted_since = self._deserted_since(deserted_since)

    def _deserted_since(self, since: float | None) -> float | None:
        if self._client.scheduler_info(n_workers=1)["workers"]:
            return None
        if self._client.status == "closed":
            raise TorchgaugeError("the connection to the cluster is lost; --resume goes on where the scan stopped")
        now = time.monotonic()
        if since is not None and now - since > DESERTED_S:
            raise TorchgaugeError("all workers of the cluster are gone; --resume goes on where the scan stopped")
        return now if since is None else since


def remote(work: Callable[[Reader, Item], Result], files: Files, item: Item) -> Result:
    with files:
        return work(files, item)


def dask_setup(worker: object) -> None:
    """Called in each local worker. Ctrl-C reaches the whole group: who started the workers ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def unseen_files(stamps: dict[str, Any]) -> list[str]:
    """Run by each worker: the files that are not there, or not the same."""
    import os

    return [file for file, stamp in stamps.items() if not os.path.isfile(file) or os.path.getsize(file) != stamp.size]


def _connect(address: str, threads: int | None, stack: ExitStack) -> Any:
    try:
        import distributed
    except ImportError:
        raise MissingDependencyError("distributed", "a scan on a Dask cluster") from None
    if address.startswith("local:"):
        address = _start_local(address, threads, stack)
    try:
        return distributed.Client(address, timeout=CONNECT_S)
    except (OSError, TimeoutError) as error:
        raise TorchgaugeError(f"no Dask scheduler answers at '{address}' within {CONNECT_S:.0f} s: {error}") from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"'{address}' is no address of a Dask scheduler, such as tcp://host:8786: {error}") from error


def _start_local(address: str, threads: int | None, stack: ExitStack) -> str:
    import distributed

    text = address.removeprefix("local:")
    if not text.isdecimal() or not int(text):
        raise UsageError(f"'{address}': write local:N with the number of processes, such as local:4")
    # What they log of a killed worker or of Ctrl-C are tracebacks; what matters comes back as an exception. Without an
    # address for its pages a scheduler insists on a port that another may have.
    cluster = distributed.LocalCluster(
        n_workers=int(text), threads_per_worker=threads or 1, processes=True, silence_logs=logging.CRITICAL,
        scheduler_kwargs={"dashboard": False, "dashboard_address": ":0"}, preload=__name__,
    )  # fmt: skip
    stack.enter_context(cluster)
    return str(cluster.scheduler_address)
