"""Threads that a forward starts run in place, one after the other: what follows a run belongs to its thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from torchgauge.capture.fake_tensor import DataDependent, Endless
from torchgauge.source.process_state import replaced_here

Function = Callable[..., object]


@contextmanager
def threads_followed() -> Iterator[None]:
    """A thread runs when it is started, the work of a pool when it is submitted. Daemon threads are left alone: they
    serve a library, such as a progress bar, for as long as the process lasts."""
    running: list[Function] = []

    def start(original: Function, thread: threading.Thread) -> None:
        if not thread.daemon:
            in_place(thread.run)
            thread.run = lambda: None  # type: ignore[method-assign]
        original(thread)  # so that it can be joined

    def submit(_: object, pool: ThreadPoolExecutor, /, task: Function, *args: object, **kwargs: object) -> object:
        future: Future[object] = Future()
        try:
            future.set_result(in_place(lambda: task(*args, **kwargs)))
        except (DataDependent, Endless):
            raise
        except Exception as error:
            future.set_exception(error)
        return future

    def in_place(task: Function) -> object:
        running.append(task)
        try:
            return task()
        finally:
            running.pop()

    def wait(original: Function, condition: threading.Condition, timeout: float | None = None) -> object:
        if running and timeout is None:
            raise RuntimeError("threads that wait for each other cannot be analysed: they run one after the other")
        return original(condition, timeout)

    with ExitStack() as stack:
        stack.enter_context(replaced_here(threading.Thread, "start", start))
        stack.enter_context(replaced_here(ThreadPoolExecutor, "submit", submit))
        stack.enter_context(replaced_here(threading.Condition, "wait", wait))
        yield
