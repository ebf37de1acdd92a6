"""Scan every tensor of a checkpoint: plan the reads, tally the values, derive the figures.

Two stages share a pool of workers: pieces are tallied and merged in order, then the figures of each tensor are derived.
Both deliver results in file order, so the work in flight and in memory is bounded and sums do not depend on timing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint import Entry, Index, Role
from torchgauge.facts import WeightStatistics
from torchgauge.facts.figures import Members
from torchgauge.facts.files import weight_row
from torchgauge.progress import Progress
from torchgauge.weights.aggregate import Aggregate, find_outliers
from torchgauge.weights.journal import Journal, scan_id
from torchgauge.weights.plan import Batch, Piece, TensorPlan, make_batches, plan_checkpoint, same_views
from torchgauge.weights.reader import FileReader, Reader, stamp_files
from torchgauge.weights.tally import empty_tally, merge_tallies
from torchgauge.weights.tensors import Duplicates, PieceTally, TensorResult, TensorTask, derive_figures, tally_batch
from torchgauge.weights.threads import Pending, Pool, Threads, in_order, single_blas_thread

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Aggregated, Scanned, ScannedTensor

# Receives the name and the figures of each tensor.
OnRow = Callable[[str, "ScannedTensor"], None]
# The recommendations for a tensor, from its facts and figures.
Recommend = Callable[[Members], list[str]]

# A large tensor is written to the journal every 64 pieces, that is 1 GiB.
_PIECES_PER_JOURNAL_ENTRY = 64


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """`dask` is the address of a scheduler or `local:N`; `heads` the number of attention heads, if known. Finished work
    is written to `journal`, `resume` continues from there; the file stays when the scan is done."""

    deep: bool = False
    spectrum: bool = False
    threads: int | None = None
    dask: str | None = None
    resume: bool = False
    heads: int | None = None
    journal: Path | None = None


@dataclass(slots=True)
class ScanResult:
    """`rows` by name in index order, without unreadable tensors; `failures` are pairs of name and reason."""

    request: ScanRequest
    rows: dict[str, ScannedTensor] = field(default_factory=dict)
    summary: Aggregated = field(default_factory=lambda: cast("Aggregated", {}))
    failures: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    nbytes: int = 0
    threads: int | None = None
    resumed: int = 0

    def statistics(self) -> WeightStatistics:
        """The record that an analysis holds."""
        circumstances: Scanned = {
            "bytes": self.nbytes,
            "seconds": self.seconds,
            "deep": self.request.deep,
            "spectrum": self.request.spectrum,
            "threads": self.threads,
            "dask": self.request.dask,
            "resumed_tensors": self.resumed,
        }
        return WeightStatistics(self.rows, self.summary, tuple(self.failures), circumstances)


def scan(
    index: Index,
    request: ScanRequest,
    *,
    progress: Progress | None = None,
    on_row: OnRow | None = None,
    reader: Reader | None = None,
    recommend: Recommend | None = None,
) -> ScanResult:
    """Scan all tensors. `reader` provides the bytes if they are not in files, `on_row` receives each row in file order
    as soon as it is complete, `recommend` fills its `recommendations`."""
    import psutil

    start = time.perf_counter()
    plans = plan_checkpoint(index)
    with ExitStack() as stack:
        stamps = stamp_files(index.files)
        options = (request.deep, request.spectrum, request.heads)
        path = request.journal if reader is None else None
        journal = stack.enter_context(Journal(path, scan_id(stamps, options), resume=request.resume))
        # More than half of the free memory: the page cache would evict what other processes need.
        is_large = sum(plan.nbytes for plan in plans) > psutil.virtual_memory().available // 2
        source = reader or stack.enter_context(FileReader(stamps, drop_cache=is_large))
        pool: Pool
        if request.dask is None:
            pool = stack.enter_context(Threads(source, request.threads))
        else:
            from torchgauge.weights.cluster import Cluster

            pool = stack.enter_context(Cluster(request.dask, source, request.threads))
        if request.deep:
            stack.enter_context(single_blas_thread())
        work = _Scan(index, request, plans, pool, source, journal, progress or (lambda done, total, part: None))
        result = work.run(on_row or (lambda name, row: None), recommend)
    result.seconds = time.perf_counter() - start
    result.threads = getattr(pool, "count", None)
    return result


class _Scan:
    """Adds tensors in file order, and derives what depends on all of them: totals, duplicates, outliers."""

    def __init__(
        self, index: Index, request: ScanRequest, plans: list[TensorPlan], pool: Pool, reader: Reader,
        journal: Journal, progress: Progress,
    ) -> None:  # fmt: skip
        self._index, self._request, self._plans = index, request, plans
        self._pool, self._reader, self._journal, self._progress = pool, reader, journal, progress
        self._done_bytes, self._total_bytes = 0, sum(plan.nbytes for plan in plans)
        self._entries = {entry.name: entry for entry in index.entries}
        self._aggregate = Aggregate(index.entries, {module.path: module.type for module in index.modules})
        self._duplicates = Duplicates(reader, {plan.name: plan for plan in plans})
        # The scales of a packed tensor are in its module or up to two levels below.
        self._neighbours: dict[str, dict[str, Entry]] = {}
        for entry in index.entries:
            module = entry.name
            for _ in range(3 if entry.logical_elements is not None else 0):
                module = module.rpartition(".")[0]
                self._neighbours.setdefault(module, {})[entry.name] = entry

    def run(self, on_row: OnRow, recommend: Recommend | None) -> ScanResult:
        result = ScanResult(self._request)
        rows: dict[str, ScannedTensor] = {}
        self._progress(0, self._total_bytes, "")
        for tensor in in_order(self._submit, self._tallied(), self._pool.max_pending):
            self._journal.write_result(tensor)
            if tensor.failure is not None:
                result.failures.append((tensor.name, tensor.failure))
            row = self._complete(tensor, recommend)
            if row is not None:
                rows[tensor.name] = row
                on_row(tensor.name, row)
        for name, owner in same_views(self._index).items():
            if owner in rows:
                rows[name] = {**rows[owner], "duplicate_of": owner}
                on_row(name, rows[name])
        result.rows = {name: rows[name] for name in self._entries if name in rows}
        # Optimizer state has no layers: its tensors follow those of the parameters.
        described = {
            name: _with_facts(self._entries[name], row)
            for name, row in result.rows.items()
            if self._entries[name].role is not Role.OPTIMIZER
        }
        result.summary = {**self._aggregate.summary(), "outliers": find_outliers(described)}
        result.nbytes, result.resumed = self._done_bytes, self._journal.size
        return result

    def _complete(self, tensor: TensorResult, recommend: Recommend | None) -> ScannedTensor | None:
        """The completed row; None if the tensor could not be read."""
        entry, row = self._entries[tensor.name], tensor.row
        if entry.shared_with is None:
            if tensor.tally is None:
                self._aggregate.leave_out(tensor.name)
            else:
                self._aggregate.add(tensor.name, tensor.tally)
        if tensor.failure is not None:
            return None
        if tensor.tally is not None:
            equal = None if entry.role is Role.OPTIMIZER else self._duplicates.first_equal(tensor)
            row["duplicate_of"] = entry.shared_with or equal
            row["recommendations"] = [] if recommend is None else recommend(_with_facts(entry, row))
        return row

    def _submit(self, item: TensorTask | TensorResult) -> Pending[TensorResult]:
        if isinstance(item, TensorTask):
            return self._pool.submit(derive_figures, item)
        ready: Future[TensorResult] = Future()
        ready.set_result(item)
        return ready

    def _submit_batch(self, batch: Batch) -> Pending[list[PieceTally]]:
        self._reader.prefetch(batch)
        return self._pool.submit(tally_batch, batch)

    def _tallied(self) -> Iterator[TensorTask | TensorResult]:
        """Each tensor once its pieces are merged, in file order."""
        batches = make_batches(piece for plan in self._plans for piece in self._unread_pieces(plan))
        tallies = chain.from_iterable(in_order(self._submit_batch, batches, self._pool.max_pending))
        for plan in self._plans:
            if plan.skipped is not None:
                yield TensorResult(plan.name, {"skipped": plan.skipped})
            elif (known := self._journal.result(plan.name)) is not None:
                self._advance(plan.nbytes, plan.name)
                yield known
            else:
                yield self._merge_pieces(plan, tallies)

    def _unread_pieces(self, plan: TensorPlan) -> tuple[Piece, ...]:
        if plan.skipped is not None or self._journal.has_result(plan.name):
            return ()
        partial = self._journal.partial_tally(plan.name)
        return plan.pieces if partial is None else plan.pieces[partial[0] :]

    def _merge_pieces(self, plan: TensorPlan, tallies: Iterator[PieceTally]) -> TensorTask | TensorResult:
        count, total = self._journal.partial_tally(plan.name) or (0, empty_tally(plan.entry.spec.dtype))
        self._advance(sum(piece.span for piece in plan.pieces[:count]), plan.name)
        failure: str | None = None
        values: list[NDArray[np.float64]] = []
        for number in range(count, len(plan.pieces)):
            piece = next(tallies)
            self._advance(piece.piece.span, plan.name)
            values += [] if piece.values is None else [piece.values]
            if piece.tally is None:
                failure = failure or piece.failure
            elif failure is None:
                total = merge_tallies(total, piece.tally)
                if (number + 1) % _PIECES_PER_JOURNAL_ENTRY == 0 and not values:
                    self._journal.write_partial(plan.name, number + 1, total)
        if failure is not None:
            return TensorResult(plan.name, {}, failure=failure)
        entry, request = plan.entry, self._request
        neighbours = self._neighbours[entry.name.rpartition(".")[0]] if entry.logical_elements else {}
        exact_values = np.concatenate(values) if values else None
        return TensorTask(plan, total, exact_values, request.deep, request.spectrum, request.heads, neighbours)

    def _advance(self, nbytes: int, name: str) -> None:
        if nbytes:
            self._done_bytes += nbytes
            self._progress(self._done_bytes, self._total_bytes, name)


def _with_facts(entry: Entry, row: ScannedTensor) -> Members:
    """The row of a tensor with the facts that do not need its values, by the keys of the JSON document."""
    return {**weight_row(entry.record()), **row}
