"""Every tensor of a checkpoint, read once: plan, tally, derive; the same result whoever does the work.

Two stages share a pool: pieces are tallied and merged in their order, then each tensor's figures are derived. Both give
results in the order of the files, so what is under way and in memory is bounded, and sums do not depend on chance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint.index import Entry, Index
from torchgauge.facts import WeightStatistics
from torchgauge.weights import tally
from torchgauge.weights.aggregate import Aggregate
from torchgauge.weights.journal import Journal, journal_path
from torchgauge.weights.outliers import outliers
from torchgauge.weights.plan import Piece, TensorPlan, Unit, make_plan, make_units, same_views
from torchgauge.weights.reader import Files, Reader, stamp_files
from torchgauge.weights.recommend import recommendations
from torchgauge.weights.tally import Tally
from torchgauge.weights.tensors import Duplicates, Finished, Outcome, Task, finish, tally_unit
from torchgauge.weights.threads import Pending, Pool, Threads, in_order, one_blas_thread

Tell = Callable[[int, int, str], None]
Value = TypeVar("Value")

# Pieces of a large tensor between two notes of how far it is: 1 GiB.
_NOTED_PIECES = 64


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """`dask` is an address or `local:N`; `heads` those of attention, where the architecture tells. `journal` keeps
    what is done on disk, `resume` goes on from there."""

    deep: bool = False
    spectrum: bool = False
    threads: int | None = None
    dask: str | None = None
    resume: bool = False
    heads: int | None = None
    journal: bool = False


def scan(
    index: Index,
    request: ScanRequest,
    *,
    tell: Tell | None = None,
    on_row: OnRow | None = None,
    reader: Reader | None = None,
) -> ScanResult:
    """The rows of all tensors and their sums. `reader` gives the bytes where they are not in files; `on_row` gets each
    row as it comes, in the order of the files; `tell` the bytes read, those in all and the current tensor."""
    began = time.perf_counter()
    plans = make_plan(index)
    with ExitStack() as stack:
        stamps = stamp_files(index.files)
        keeps = request.journal and reader is None
        options = (request.deep, request.spectrum, request.heads)
        journal = stack.enter_context(
            Journal(journal_path(index.path, stamps, options) if keeps else None, resume=request.resume)
        )
        source = reader or stack.enter_context(Files(stamps, drops=is_large(plans)))
        pool = stack.enter_context(_make_pool(request, source))
        if request.deep:
            stack.enter_context(one_blas_thread())
        found = _Scan(index, request, plans, pool, source, journal, tell or _silent).run(on_row)
        journal.discard()
    found.seconds = time.perf_counter() - began
    found.threads = getattr(pool, "count", None)
    return found


def _silent(done: int, total: int, part: str) -> None:
    pass


def _make_pool(request: ScanRequest, reader: Reader) -> AbstractContextManager[Pool]:
    if request.dask is None:
        return Threads(reader, request.threads)
    from torchgauge.weights.cluster import Cluster

    return Cluster(request.dask, reader, request.threads)


def is_large(plans: list[TensorPlan]) -> bool:
    """More than half of the memory that is free: keeping it would push out what others need."""
    import psutil

    return bool(sum(plan.nbytes for plan in plans) > psutil.virtual_memory().available // 2)


@dataclass(frozen=True, slots=True)
class Done(Generic[Value]):
    """What needs no work."""

    value: Value

    def done(self) -> bool:
        return True

    def result(self) -> Value:
        return self.value


class _Scan:
    """`index` in, `ScanResult` out, with everything on the way."""

    def __init__(
        self, index: Index, request: ScanRequest, plans: list[TensorPlan], pool: Pool, reader: Reader,
        journal: Journal, tell: Tell,
    ) -> None:  # fmt: skip
        self._index, self._request, self._plans = index, request, plans
        self._pool, self._reader, self._journal, self._tell = pool, reader, journal, tell
        self._modules = _by_module(index.entries)
        self._done_bytes, self._total_bytes = 0, sum(plan.nbytes for plan in plans)

    def run(self, on_row: OnRow | None) -> ScanResult:
        self._tell(0, self._total_bytes, "")
        collector = Collector(self._index, Duplicates(self._reader, {plan.name: plan for plan in self._plans}))
        for found in in_order(self._submit, self._tallied(), self._pool.ahead):
            self._journal.note_finished(found)
            row = collector.take(found)
            if on_row is not None and row is not None:
                on_row(found.name, row)
        result = collector.result(on_row)
        result.nbytes, result.resumed = self._done_bytes, self._journal.size
        return result

    def _submit(self, item: Task | Finished) -> Pending[Finished]:
        return Done(item) if isinstance(item, Finished) else self._pool.submit(finish, item)

    def _tallied(self) -> Iterator[Task | Finished]:
        """What is known of each tensor once its pieces are merged, in the order of the files."""
        units = make_units(piece for plan in self._plans for piece in self._unread(plan))
        outcomes = chain.from_iterable(in_order(self._submit_unit, units, self._pool.ahead))
        for plan in self._plans:
            if plan.skipped is not None:
                yield Finished(plan.name, {"skipped": plan.skipped})
            elif (known := self._journal.finished(plan.name)) is not None:
                self._advance(plan.nbytes, plan.name)
                yield known
            else:
                yield self._merged(plan, outcomes)

    def _submit_unit(self, unit: Unit) -> Pending[list[Outcome]]:
        self._reader.expect(unit)
        return self._pool.submit(tally_unit, unit)

    def _unread(self, plan: TensorPlan) -> tuple[Piece, ...]:
        if plan.skipped is not None or self._journal.has_finished(plan.name):
            return ()
        begun = self._journal.begun(plan.name)
        return plan.pieces if begun is None else plan.pieces[begun[0] :]

    def _merged(self, plan: TensorPlan, outcomes: Iterator[Outcome]) -> Task | Finished:
        count, whole = self._journal.begun(plan.name) or (0, tally.empty(plan.entry.spec.dtype))
        self._advance(sum(piece.span for piece in plan.pieces[:count]), plan.name)
        failure: str | None = None
        values: list[NDArray[np.float64]] = []
        for number in range(count, len(plan.pieces)):
            outcome = next(outcomes)
            self._advance(outcome.piece.span, plan.name)
            values += [] if outcome.values is None else [outcome.values]
            if outcome.tally is None:
                failure = failure or outcome.failure
            elif failure is None:
                whole = tally.merge(whole, outcome.tally)
                if (number + 1) % _NOTED_PIECES == 0 and not values:
                    self._journal.note_begun(plan.name, number + 1, whole)
        if failure is not None:
            return Finished(plan.name, {}, failure=failure)
        return self._task(plan, whole, np.concatenate(values) if values else None)

    def _task(self, plan: TensorPlan, whole: Tally, values: NDArray[np.float64] | None) -> Task:
        entry, request = plan.entry, self._request
        neighbours = self._modules[entry.name.rpartition(".")[0]] if entry.logical_elements else {}
        return Task(plan, whole, values, request.deep, request.spectrum, request.heads, neighbours)

    def _advance(self, nbytes: int, name: str) -> None:
        if nbytes:
            self._done_bytes += nbytes
            self._tell(self._done_bytes, self._total_bytes, name)


def _by_module(entries: tuple[Entry, ...]) -> dict[str, dict[str, Entry]]:
    """The tensors of each module and of the two levels below it: where the scales of a packed one are."""
    modules: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        if entry.logical_elements is None:
            continue
        module = entry.name
        for _ in range(3):
            module = module.rpartition(".")[0]
            modules.setdefault(module, {})[entry.name] = entry
    return modules


OnRow = Callable[[str, dict[str, Any]], None]


@dataclass(slots=True)
class ScanResult:
    """`rows` by name in the order of the index, without what could not be read; `failures` are (name, reason)."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    nbytes: int = 0
    threads: int | None = None
    resumed: int = 0


class Collector:
    """Takes the tensors in the order of the files."""

    def __init__(self, index: Index, duplicates: Duplicates) -> None:
        self._entries = {entry.name: entry for entry in index.entries}
        self._copies = same_views(index)
        self._duplicates = duplicates
        self._aggregate = Aggregate(index.entries)
        self._result = ScanResult()

    def take(self, found: Finished) -> dict[str, Any] | None:
        entry = self._entries[found.name]
        if found.failure is not None:
            self._result.failures.append((found.name, found.failure))
        if entry.shared_with is None:
            if found.tally is None:
                self._aggregate.leave_out(found.name)
            else:
                self._aggregate.add(found.name, found.tally)
        if found.failure is not None:
            return None
        if found.tally is not None:
            found.row["duplicate_of"] = entry.shared_with or self._duplicates.first_like(found)
            found.row["recommendations"] = recommendations(facts(entry) | found.row)
        self._result.rows[found.name] = found.row
        return found.row

    def result(self, on_row: OnRow | None) -> ScanResult:
        rows = self._result.rows
        for name, owner in self._copies.items():
            if owner in rows:
                rows[name] = rows[owner] | {"duplicate_of": owner}
                if on_row is not None:
                    on_row(name, rows[name])
        self._result.rows = {name: rows[name] for name in self._entries if name in rows}
        apart = outliers({name: facts(self._entries[name]) | row for name, row in self._result.rows.items()})
        self._result.summary = self._aggregate.summary() | {"outliers": apart}
        return self._result


def facts(entry: Entry) -> dict[str, Any]:
    """What is known of a tensor without its values, by the keys of the JSON document."""
    spec = entry.spec
    return {
        "name": entry.name,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "elements": entry.elements,
        "bytes": entry.nbytes,
        "stride": None if spec.stride is None else list(spec.stride),
        "role": entry.role.value,
        "shared_with": entry.shared_with,
        "logical_elements": entry.logical_elements,
    }


def weight_statistics(
    index: Index,
    request: ScanRequest,
    *,
    tell: Tell | None = None,
    on_row: OnRow | None = None,
    reader: Reader | None = None,
) -> WeightStatistics:
    found = scan(index, request, tell=tell, on_row=on_row, reader=reader)
    return WeightStatistics(found.rows, found.summary, tuple(found.failures), _circumstances(found, request))


def _circumstances(found: ScanResult, request: ScanRequest) -> dict[str, Any]:
    return {
        "bytes": found.nbytes,
        "seconds": found.seconds,
        "deep": request.deep,
        "spectrum": request.spectrum,
        "threads": found.threads,
        "dask": request.dask,
        "resumed_tensors": found.resumed,
    }
