"""The values of weights: of a checkpoint by itself, and as part of an analysis."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchgauge import cache
from torchgauge.analysis.isolated import isolation_remarks, needs_isolation, read_analysis, require_isolated
from torchgauge.analysis.options import Depth, known_heads, stored_path, switch
from torchgauge.analysis.result import WeightScan
from torchgauge.analysis.static_capture import stored_capture
from torchgauge.errors import InputError, TargetError, UsageError, errors_as_torchgauge
from torchgauge.facts import ArchitectureRecord, Capture, View, WeightStatistics
from torchgauge.facts.figures import Members
from torchgauge.progress import Progress, stage, transfer

if TYPE_CHECKING:
    import torch

    from torchgauge.checkpoint import Index
    from torchgauge.source import Source
    from torchgauge.weights import Reader, ScanRequest

OnRow = Callable[[Mapping[str, Any]], None]


def scan_weights(
    path: str | os.PathLike[str] | torch.nn.Module | Mapping[str, object],
    *,
    weights: bool | str = "auto",
    deep: bool | str = "auto",
    spectrum: bool = False,
    threads: int | None = None,
    dask: str | None = None,
    resume: bool = False,
    against: str | os.PathLike[str] | None = None,
    code: str | torch.nn.Module | None = None,
    allow_pickle: bool = False,
    on_row: OnRow | None = None,
    memory_limit: int | str | None = None,
    time_limit: float | None = None,
    require_isolation: bool = False,
    progress: bool | None = None,
) -> WeightScan:
    """Statistics of the tensors of a checkpoint: a file or folder, a state dict (also with other things around it) or
    a module. Nothing in a file is executed unless `allow_pickle` is set.

    - `weights`: False reads only the headers; "auto" reads the values, unless `against` is given.
    - `deep`: also figures that need several passes ("auto": up to 2 GiB). `spectrum`: also all singular values.
    - `against`: another checkpoint to compare with.
    - `threads`: threads for reading and counting. `dask`: the address of a cluster, or "local:N" for N processes.
    - `resume`: continue an interrupted scan. `against`, `dask`, `resume` and `code` need a file or folder.
    - `code`: the target that builds the model; names and shapes are checked, and tensors are assigned to its
      modules.
    - `on_row`: called with each row as it is finished, in the order of the files.

    The files are read in a process without rights. `memory_limit` ("4GiB", or bytes; default: 2 GiB or twice their
    size) and `time_limit` (seconds; default: 300, more for large files) limit it. A Dask cluster reads them with
    the rights of its workers. `require_isolation`: refuse files where a part of the isolation is missing.
    """
    if not isinstance(path, str | os.PathLike):
        if against is not None or dask is not None or resume or code is not None:
            raise UsageError("against, dask, resume and code need a file or folder: save the tensors first")
        return _scan_live(path, Depth.of(deep, spectrum), switch(weights, "weights"), threads, on_row, progress)
    found = resumable_scan(**locals())
    remove_journal(found, path, deep, spectrum)
    return found


def remove_journal(found: WeightScan, path: str | os.PathLike[str], deep: bool | str, spectrum: bool) -> None:
    """Once the result of a scan is where it belongs, its journal is of no use."""
    if found.capture.statistics is not None and found.capture.statistics.scan:
        with suppress(OSError):
            cache.writer.remove(scan_journal(path, deep, spectrum))


def scan_journal(path: str | os.PathLike[str], deep: bool | str, spectrum: bool) -> Path:
    return cache.journal_file(path, deep, spectrum)


def resumable_scan(
    path: str | os.PathLike[str],
    *,
    weights: bool | str,
    deep: bool | str,
    spectrum: bool,
    threads: int | None,
    dask: str | None,
    resume: bool,
    against: str | os.PathLike[str] | None,
    code: str | torch.nn.Module | None,
    allow_pickle: bool,
    on_row: OnRow | None = None,
    memory_limit: int | str | None,
    time_limit: float | None,
    require_isolation: bool,
    progress: bool | None,
) -> WeightScan:
    """`scan_weights`, for a caller that has yet to write the result: the journal stays until it removes it."""
    options = dict(locals())
    if require_isolation:
        require_isolated(path, takes_code=False, allow_pickle=allow_pickle, dask=dask)
    if dask is None and needs_isolation(path, allow_pickle, takes_code=False):
        given = (path, against)
        paths = [place for one in given if (place := stored_path(one, takes_code=False)) is not None]
        del options["on_row"]
        return read_analysis(
            WeightScan, resumable_scan, paths, options, memory_limit=memory_limit, time_limit=time_limit,
            needs_torch=code is not None, on_row=on_row, journal=scan_journal(path, deep, spectrum),
        )  # fmt: skip
    place, depth = os.fspath(path), Depth.of(deep, spectrum)
    reads = switch(weights, "weights")
    # An error of the caller's own function is not the file's.
    theirs: list[Exception] = []
    with errors_as_torchgauge(place, passing=theirs):
        with stage("reading", shown=progress) as report_progress:
            source = _open_weights(place, code, allow_pickle, report_progress)
            capture = stored_capture(source)
            other = None if against is None else _open_index(os.fspath(against), report_progress)
        statistics = WeightStatistics({})
        if reads or (reads is None and other is None):
            request = depth.request(source.stored.stored_bytes)
            heads = known_heads(capture.architecture)
            request = replace(request, heads=heads, threads=threads, dask=dask, resume=resume)
            request = replace(request, journal=scan_journal(path, deep, spectrum))
            statistics = _scanned(capture, source.stored, request, on_row, theirs, progress)
        if other is not None:
            from torchgauge.weights import compare_checkpoints

            with transfer("comparing", shown=progress) as tell_bytes:
                changes = compare_checkpoints(source.stored, other, threads=threads, progress=tell_bytes)
            statistics = replace(statistics, against=changes)
        if statistics.scan or other is not None:
            capture = replace(capture, statistics=statistics)
        return WeightScan(capture).with_remarks(warnings=isolation_remarks())


def _scan_live(
    held: torch.nn.Module | Mapping[str, object], depth: Depth, reads: bool | None, threads: int | None,
    on_row: OnRow | None, progress: bool | None,
) -> WeightScan:  # fmt: skip
    """The scan of tensors in memory."""
    from torch import nn

    from torchgauge.facts import TargetRecord
    from torchgauge.source.source import Source
    from torchgauge.weights import LiveTensors

    if not isinstance(held, nn.Module | Mapping):
        raise UsageError(f"weights are a path, a state dict or a module, not a {type(held).__name__}")
    live = LiveTensors(held)
    if not live.index.entries:
        raise InputError(f"this {type(held).__name__} holds no tensor")
    if isinstance(held, nn.Module):
        source = Source(held, TargetRecord(type(held).__name__), index=live.index)
    else:
        source = Source(None, TargetRecord("state dict", "checkpoint", "state dict"), index=live.index)
    capture = stored_capture(source)
    if reads is not False:
        request = depth.request(live.index.stored_bytes)
        request = replace(request, heads=known_heads(capture.architecture), threads=threads)
        statistics = _scanned(capture, live.index, request, on_row, [], progress, live)
        capture = replace(capture, statistics=statistics)
    return WeightScan(capture)


def read_statistics(
    source: Source, architecture: ArchitectureRecord | None, depth: Depth, progress: bool | None
) -> WeightStatistics:
    """The values of the stored weights; without files, of the model's own parameters."""
    from torchgauge.advise import recommend
    from torchgauge.weights import LiveTensors, scan

    live = None if source.index is not None else LiveTensors(source.runnable)
    index = source.stored if live is None else live.index
    request = depth.request(index.stored_bytes)
    if request.deep:
        request = replace(request, heads=known_heads(architecture))
    with transfer("reading the weights", shown=progress) as report_progress:
        return scan(index, request, progress=report_progress, reader=live, recommend=recommend).statistics()


def _scanned(
    capture: Capture, index: Index, request: ScanRequest, on_row: OnRow | None, theirs: list[Exception],
    progress: bool | None, reader: Reader | None = None,
) -> WeightStatistics:  # fmt: skip
    """An error of `on_row` goes to `theirs` too."""
    from torchgauge.advise import recommend
    from torchgauge.weights import scan

    rows = {row.name: row for row in View(capture).weights} if on_row is not None else {}

    def pass_on(name: str, figures: Members) -> None:
        if on_row is not None:
            try:
                on_row({**rows[name], **figures})
            except Exception as error:
                theirs.append(error)
                raise

    with transfer("scanning", shown=progress) as report_progress:
        found = scan(index, request, progress=report_progress, on_row=pass_on, reader=reader, recommend=recommend)
    statistics = found.statistics()
    for name, _ in statistics.failures:
        pass_on(name, {})
    return statistics


def _open_weights(
    place: str, code: str | torch.nn.Module | None, allow_pickle: bool, report_progress: Progress
) -> Source:
    """Open the weights; torch is needed only with code."""
    if code is None and not allow_pickle:
        from torchgauge.source.source import Source, stored_target

        index = _open_index(place, report_progress)
        return Source(None, stored_target(index, place), index=index, warnings=index.warnings)
    from torchgauge.source import resolve
    from torchgauge.source.files import open_weights
    from torchgauge.source.source import OpenOptions

    joined = None if code is None else resolve(code)
    return open_weights(place, OpenOptions(place, joined, allow_pickle, report_progress))


def _open_index(place: str, report_progress: Progress) -> Index:
    from torchgauge.checkpoint import open_checkpoint

    if not os.path.exists(place):
        is_code = ":" in os.path.basename(place)
        hint = "; weights reads checkpoints: for code, use torchgauge analyze" if is_code else ""
        raise TargetError(f"there is no file '{place}'{hint}")
    return open_checkpoint(place, progress=report_progress)
