"""The same measurement over several batch sizes, sequence lengths, types or numbers of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from torchgauge.capture.structure import map_tensors, materialise
from torchgauge.errors import InputError, UsageError
from torchgauge.measure.latency import Budget, time_runs
from torchgauge.measure.measuring import INTERRUPTED, clear_traceback, failure_text, items_per_run
from torchgauge.measure.parts import memory_figures
from torchgauge.measure.settings import MAX_THREADS, thread_count
from torchgauge.measure.subject import Subject, TrainingStep, ready
from torchgauge.progress import Progress
from torchgauge.source import Candidate, parse_dtype

if TYPE_CHECKING:
    from torchgauge.facts.document_types import SweepPoint

BATCH, SEQ, DTYPE, THREADS = "batch", "seq", "dtype", "threads"
KEYS = (BATCH, SEQ, DTYPE, THREADS)
# Each point gets this share of the time for the undisturbed runs.
_POINT_SHARE = 0.5

# The inputs for a batch size or a sequence length.
Inputs = Callable[[str, int], Candidate]
# Adds further measurements to the row of a point; takes the subject, one whole run of it, and the row.
AtPoint = Callable[[Subject, Callable[[], None], "SweepPoint"], None]


@dataclass(frozen=True, slots=True)
class Sweep:
    """One quantity and its values, in the order they are measured."""

    key: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if self.key not in KEYS:
            raise UsageError(f"a sweep must be over one of {', '.join(KEYS)}, not '{self.key}'")
        if not self.values:
            raise UsageError(f"a sweep over {self.key} needs values, as in {self.key}={_EXAMPLES[self.key]}")
        for value in self.values:
            if self.key == DTYPE:
                if not parse_dtype(str(value)).is_floating_point:
                    raise UsageError(f"a sweep over dtype takes floating types, not '{value}'")
            elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"a sweep over {self.key} takes positive integers, not '{value}'")
            elif self.key == THREADS and value > MAX_THREADS:
                raise UsageError(f"a sweep over threads goes up to {MAX_THREADS}, not {value}")


_EXAMPLES = {BATCH: "1,2,4,8", SEQ: "128,256,512", DTYPE: "float32,bfloat16", THREADS: "1,2,4"}


def parse_sweeps(given: str | Sequence[str] | Mapping[str, Iterable[Any]] | None) -> tuple[Sweep, ...]:
    """`batch=1,2,4`, several such, or a mapping from the key to the values."""
    if given is None:
        return ()
    if isinstance(given, str):
        return (_parse(given),)
    if isinstance(given, Mapping):
        sweeps = []
        for key, values in given.items():
            if isinstance(values, str) or not isinstance(values, Iterable):
                raise UsageError(f"the values of a sweep over {key} must be a list, not {values!r}")
            names = [str(each).removeprefix("torch.") if isinstance(each, torch.dtype) else each for each in values]
            sweeps.append(Sweep(str(key), tuple(names)))
        return tuple(sweeps)
    if not isinstance(given, Sequence):
        raise UsageError(f"a sweep is KEY=a,b,c or a dict such as {{'batch': [1, 2, 4]}}, not {given!r}")
    return tuple(map(_parse, given))


def _parse(text: str) -> Sweep:
    key, equals, values = text.partition("=")
    parts = [part.strip() for part in values.split(",") if part.strip()]
    if not equals:
        raise UsageError(f"write a sweep as KEY=a,b,c, such as batch=1,2,4, not '{text}'")
    key = key.strip()
    return Sweep(key, tuple(parts if key == DTYPE else [int(part) if part.isdecimal() else part for part in parts]))


def measure_sweep(
    subject: Subject,
    sweeps: Sequence[Sweep],
    inputs: Inputs,
    *,
    budget: Budget,
    train: bool = False,
    at_point: AtPoint | None = None,
    progress: Progress | None = None,
) -> Iterator[SweepPoint]:
    """A row for every point. One that fails is kept with its failure; after an interruption there are no more."""
    points = [(sweep.key, value) for sweep in sweeps for value in sweep.values]
    limits = replace(budget, seconds=_POINT_SHARE * budget.seconds)
    for number, (key, value) in enumerate(points):
        if progress:
            progress(number, len(points), f"{key} {value}")
        row = _row(subject, (key, value), inputs, limits, train=train, at_point=at_point)
        yield row
        if row["failure"] == INTERRUPTED:
            return


def _row(
    subject: Subject, point: tuple[str, Any], inputs: Inputs, budget: Budget, *, train: bool, at_point: AtPoint | None
) -> SweepPoint:
    key, value = point
    row: SweepPoint = {"key": key, "value": value, "latency": None, "memory": None, "failure": None}
    row |= {"throughput_per_s": None, "time_per_sample_s": None}
    try:
        with _at(subject, key, value, inputs, train=train) as there:
            run = TrainingStep(there).run if train else there.run
            timed = time_runs(run, budget)
            items = items_per_run(there)
            latency = row["latency"] = timed.figures(items)
            if latency is not None:
                row |= {
                    "throughput_per_s": latency["throughput_per_s"],
                    "time_per_sample_s": latency["median_s"] / items,
                }
            if timed.failure is not None:
                raise timed.failure
            row["memory"] = memory_figures(there, run)
            if at_point is not None:
                at_point(there, run, row)
    # A failure at one point (out of memory, a length beyond the model's table) does not affect the next.
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        row["failure"] = failure_text(error)
        clear_traceback(error)
        # Free the memory that the failed point had reserved.
        if subject.device.type == "cuda":
            torch.cuda.empty_cache()
    return row


@contextmanager
def _at(subject: Subject, key: str, value: Any, inputs: Inputs, *, train: bool) -> Iterator[Subject]:
    """The subject at one point."""
    if key == THREADS:
        with thread_count(value):
            yield subject
    elif key == DTYPE:
        given = Candidate(subject.args, subject.kwargs, None)
        with ready(subject.model, given, device=subject.device, dtype=parse_dtype(str(value)), train=train) as there:
            yield there
    else:
        candidate = inputs(key, value)
        args, kwargs = map_tensors(
            (candidate.args, candidate.kwargs), lambda tensor: materialise(tensor, subject.device, subject.dtype)
        )
        yield replace(subject, args=args, kwargs=kwargs)


def rebatched(candidate: Candidate, batch: int) -> Candidate:
    """Inputs that were given, in another batch size: samples are repeated, or the last ones left out."""
    size = batch_size(candidate)

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != size:
            return tensor
        if tensor.is_meta:
            return tensor.new_empty((batch, *tensor.shape[1:]))
        return tensor[torch.arange(batch, device=tensor.device) % size]

    args, kwargs = map_tensors((candidate.args, candidate.kwargs), resize)
    return Candidate(args, kwargs, candidate.reason)


def batch_size(candidate: Candidate) -> int:
    """The first dimension that the given tensors share; tensors with 1 there are broadcast over the batch."""
    sizes: list[int] = []
    map_tensors((candidate.args, candidate.kwargs), lambda t: sizes.append(int(t.shape[0])) if t.dim() else None)
    distinct = sorted({size for size in sizes if size != 1}) or sorted(set(sizes))
    if not distinct:
        raise InputError("a sweep over batch needs a tensor with a batch dimension among the inputs")
    if len(distinct) > 1 or not distinct[0]:
        raise InputError(
            f"the inputs that were given differ in their first dimension ({', '.join(map(str, distinct))}), so the "
            "batch is ambiguous: leave them out (they are inferred), or measure each batch separately"
        )
    return distinct[0]
