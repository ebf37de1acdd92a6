"""A Dask cluster on this machine without a TCP port: its processes talk through sockets in a folder of the user's.

Who may connect to a Dask scheduler may run code as its user, and on a TCP port that is every user of the machine. An
address is `unix://FOLDER:NUMBER`: Dask expects a host and a port, here they are the folder and the file in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import distributed
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import BaseListener, Comm, CommClosedError, Connector
from distributed.comm.registry import Backend, backends
from distributed.comm.tcp import MAX_BUFFER_SIZE, TCP, convert_stream_closed_error
from tornado.iostream import IOStream, StreamClosedError
from tornado.netutil import add_accept_handler, bind_unix_socket

SCHEME = "unix"


def socket_file(location: str) -> str:
    folder, number = parse_host_port(location)
    return os.path.join(folder, str(number))


def address(location: str) -> str:
    return f"{SCHEME}://{location}"


class UnixComm(TCP):  # type: ignore[misc]
    """Messages as over TCP; a Unix socket has none of TCP's options."""

    def __init__(self, stream: IOStream, local: str, peer: str, deserialize: bool = True) -> None:
        self._closed = False
        Comm.__init__(self, deserialize=deserialize)
        self._local_addr, self._peer_addr, self.stream = local, peer, stream
        self._extra: dict[str, Any] = {}
        self._finalizer = weakref.finalize(self, self._get_finalizer())
        self._finalizer.atexit = False
        this = weakref.ref(self)

        def note_end() -> None:
            comm = this()
            if comm is not None:
                comm._closed = True

        stream.set_close_callback(note_end)


class UnixConnector(Connector):  # type: ignore[misc]
    async def connect(self, location: str, deserialize: bool = True, **_: Any) -> Comm:
        stream = IOStream(socket.socket(socket.AF_UNIX), max_buffer_size=MAX_BUFFER_SIZE)
        try:
            await stream.connect(socket_file(location))
        except StreamClosedError as error:
            convert_stream_closed_error(self, error)
        folder, _number = parse_host_port(location)
        return UnixComm(stream, address(unparse_host_port(folder, 0)), address(location), deserialize)


class UnixListener(BaseListener):  # type: ignore[misc]
    prefix = f"{SCHEME}://"

    def __init__(self, location: str, handle_comm: Any, deserialize: bool = True, **options: Any) -> None:
        super().__init__()
        self._folder, self._number = parse_host_port(location, 0)
        self._handle_comm, self._deserialize = handle_comm, deserialize
        self._allow_offload = options.get("allow_offload", True)
        self._socket: socket.socket | None = None
        self._stop_accepting: Callable[[], None] = lambda: None
        self._tasks: set[asyncio.Future[None]] = set()

    async def start(self) -> None:
        numbers = iter([self._number]) if self._number else count(os.getpid() * 1000)
        # A child's number is its own; the first that is free after it.
        self._number = next(number for number in numbers if not os.path.exists(f"{self._folder}/{number}"))
        self._socket = bind_unix_socket(socket_file(self._location), mode=0o600, backlog=2048)
        self._stop_accepting = add_accept_handler(self._socket, self._accept)

    def stop(self) -> None:
        if self._socket is not None:
            self._stop_accepting()
            self._socket.close()
            self._socket = None
            with suppress(OSError):
                os.unlink(socket_file(self._location))

    def _accept(self, connection: socket.socket, _: object) -> None:
        stream = IOStream(connection, max_buffer_size=MAX_BUFFER_SIZE)
        peer = address(unparse_host_port(self._folder, 0))
        comm = UnixComm(stream, self.listen_address, peer, self._deserialize)
        comm.allow_offload = self._allow_offload
        task = asyncio.ensure_future(self._serve(comm))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, comm: Comm) -> None:
        try:
            await self.on_connection(comm)
        except CommClosedError:
            return
        await self._handle_comm(comm)

    @property
    def _location(self) -> str:
        return str(unparse_host_port(self._folder, self._number))

    @property
    def listen_address(self) -> str:
        return address(self._location)

    contact_address = listen_address


class UnixBackend(Backend):  # type: ignore[misc]
    def get_connector(self) -> UnixConnector:
        return UnixConnector()

    def get_listener(self, location: str, handle_comm: Any, deserialize: bool, **options: Any) -> UnixListener:
        return UnixListener(location, handle_comm, deserialize, **options)

    def get_address_host(self, location: str) -> str:
        return str(parse_host_port(location)[0])

    def get_address_host_port(self, location: str) -> tuple[str, int]:
        folder, number = parse_host_port(location)
        return folder, number

    def resolve_address(self, location: str) -> str:
        return location

    def get_local_address_for(self, location: str) -> str:
        return str(unparse_host_port(parse_host_port(location)[0], None))


backends.setdefault(SCHEME, UnixBackend())


class Scheduler(distributed.Scheduler):  # type: ignore[misc]
    def start_http_server(self, *_: object, **__: object) -> None:
        """No dashboard: it would listen on a TCP port."""


class Worker(distributed.Worker):  # type: ignore[misc]
    def start_http_server(self, *_: object, **__: object) -> None:
        """As the scheduler."""


def local_cluster(folder: str, processes: int, threads: int, preload: str) -> distributed.SpecCluster:
    """A scheduler in this process and workers in others, which import this module with their class. The sockets are in
    `folder`; its rights are those of the cluster."""
    own = {"host": folder, "protocol": f"{SCHEME}://", "local_directory": folder}
    # Workers log tracebacks when killed or interrupted; real errors come back as exceptions.
    silence = logging.CRITICAL
    options = {**own, "nthreads": threads, "memory_limit": 1 / processes, "worker_class": Worker, "preload": preload,
               "silence_logs": silence}  # fmt: skip
    return distributed.SpecCluster(
        scheduler={"cls": Scheduler, "options": own},
        workers={number: {"cls": distributed.Nanny, "options": options} for number in range(processes)},
        silence_logs=silence,
    )
