"""Work on a few threads: results come in the order of the work, and only so much is under way at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, Self, TypeVar

from torchgauge.hardware import usable_cores
from torchgauge.weights.stream.reading import Reader

Item = TypeVar("Item")
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Pending(Protocol[Result_co]):
    def done(self) -> bool: ...

    def result(self) -> Result_co: ...


class Pool(Protocol):
    """Where work is done: `work` is a function of a module, and gets the reader and an item."""

    @property
    def ahead(self) -> int:
        """How many items may be under way."""
        ...

    def submit(self, work: Callable[[Reader, Item], Result], item: Item) -> Pending[Result]: ...


class Threads:
    def __init__(self, reader: Reader, threads: int | None = None) -> None:
        self.count = threads or usable_cores() or 1
        self.ahead = 2 * self.count + 2
        self._reader = reader
        self._executor = ThreadPoolExecutor(self.count, thread_name_prefix="torchgauge")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def submit(self, work: Callable[[Reader, Item], Result], item: Item) -> Pending[Result]:
        return self._executor.submit(partial(work, self._reader), item)


def in_order(submit: Callable[[Item], Pending[Result]], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """The results in the order of the items. `items` is asked for more only while there is room."""
    pending: deque[Pending[Result]] = deque()
    for item in items:
        pending.append(submit(item))
        while pending and (len(pending) >= ahead or pending[0].done()):
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
