"""One measurement of a model: the total from undisturbed runs, the parts from separate runs, the remainder shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import torch

from torchgauge.capture.failures import clear_traceback
from torchgauge.errors import TorchgaugeError
from torchgauge.facts import Measured, OpRecord, blank_measurements
from torchgauge.measure.counters import counting
from torchgauge.measure.latency import Clock, Surroundings, Timed, surroundings_noted, time_runs
from torchgauge.measure.module_times import ModuleWatch, module_paths, module_rows
from torchgauge.measure.parts import Measurement, MeasurementPlan, measure_memory, measure_modules
from torchgauge.measure.sampler import sampling
from torchgauge.measure.settings import measure_scaling
from torchgauge.measure.subject import Subject, TrainingStep
from torchgauge.progress import Progress
from torchgauge.units import format_whole_percent

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Measurements

__all__ = [
    "INTERRUPTED",
    "MeasurementPlan",
    "clear_traceback",
    "failure_text",
    "measure",
    "module_paths",
    "module_rows",
]

Stage = Callable[[Measurement], None]

INTERRUPTED = "interrupted"
# torch raises a plain RuntimeError if the CPU runs out of memory.
_CPU_MEMORY = "DefaultCPUAllocator: "
# With a larger difference between the two halves of the runs, the speed of the machine changed.
_MAX_DRIFT = 0.05


def measure(
    subject: Subject, ops: Sequence[OpRecord], plan: MeasurementPlan, progress: Progress | None = None
) -> Measured:
    """Measure everything requested. `failure` says what failed; what was measured before it is kept."""
    work = Measurement(subject, subject.run, ops, plan, figures=blank_measurements())
    chosen: list[tuple[str, Stage, bool]] = [
        ("latency", measure_latency, True),
        ("phases", measure_phases, plan.train),
        ("modules and ops", measure_modules, plan.parts and not subject.is_compiled),
        ("memory", measure_memory, plan.parts),
        ("system", watch_machine, plan.system),
        ("threads", measure_scaling, plan.system and not work.on_device),
    ]
    stages = [*((name, stage) for name, stage, wanted in chosen if wanted), *plan.more]
    try:
        if plan.train:
            work.step = TrainingStep(subject)
            work.run = work.step.run
        for number, (name, stage) in enumerate(stages):
            if progress:
                progress(number, len(stages), name)
            stage(work)
    # The model's own code may raise anything, also in a later run for the first time.
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        work.figures["failure"] = failure_text(error)
        clear_traceback(error)
    return work.finished()


def measure_phases(work: Measurement) -> None:
    assert work.step is not None
    work.figures["phases"] = work.step.phases()


def measure_latency(work: Measurement) -> None:
    host = HostWatch(work.subject) if work.on_device and not work.plan.train else None
    between: Callable[[], None] | None = host.run if host else None
    if not work.on_device and work.plan.parts and not work.subject.is_compiled:
        # On the CPU, modules are timed in runs between the undisturbed ones, so that a slower machine affects both.
        watch = work.watch = ModuleWatch(module_paths(work.subject.model))
        between = partial(watch.run, work.run)
    begin, used = perf_counter(), process_time()
    with surroundings_noted() as noted:
        timed = time_runs(work.run, work.plan.budget, between=between)
    elapsed, used = perf_counter() - begin, process_time() - used
    work.figures |= _headline(work.subject, timed, noted)
    if work.figures["latency"]:
        work.figures["latency"]["host_s"] = host.median_s if host else None
    count = torch.get_num_threads()
    work.figures["threads"] = {
        "intra_op": count,
        "inter_op": torch.get_num_interop_threads(),
        "utilisation": used / elapsed / count if elapsed > 0 else None,
    }
    if timed.failure is not None:
        raise timed.failure


def _headline(subject: Subject, timed: Timed, noted: Surroundings) -> Measurements:
    doubts = []
    precision = timed.precision
    if timed.is_warmup_only:
        doubts.append("the measurement ended during the warm-up: the latency is that of the warm-up runs")
    if precision is not None and precision > 0.02:
        known = format_whole_percent(precision)
        doubts.append(f"the median is only known to ±{known}: the machine is too noisy, or the budget too short")
    drift = timed.drift
    if drift is not None and abs(drift) > _MAX_DRIFT:
        change = f"{format_whole_percent(abs(drift))} {'more' if drift > 0 else 'less'} time than the first"
        doubts.append(f"the machine's speed changed: the second half of the runs took {change}")
    if noted.is_loud:
        used = format_whole_percent(noted.others_share)
        doubts.append(f"other processes used {used} of the machine during the measurement")
    return {
        "latency": timed.figures(items_per_run(subject)),
        "device": str(subject.device),
        "surroundings": noted.figures(),
        "notes": [*subject.notes, *doubts],
    }


def failure_text(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, torch.OutOfMemoryError):
        return "the device ran out of memory: try a smaller batch or a narrower dtype"
    if isinstance(error, MemoryError) or _CPU_MEMORY in str(error):
        return "the machine ran out of memory: try a smaller batch or a narrower dtype"
    first = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, TorchgaugeError):
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def items_per_run(subject: Subject) -> int:
    """The size of the batch: the first dimension of the first tensor given."""
    for value in (*subject.args, *subject.kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dim():
            return int(value.shape[0])
    return 1


class HostWatch:
    """Time of the host alone, in extra runs between the undisturbed ones. If the queue of the device is full, the host
    waits for it: the time is then close to the total, although the host is not the bottleneck."""

    def __init__(self, subject: Subject, clock: Clock = perf_counter) -> None:
        self._subject, self._clock = subject, clock
        self._seconds: list[float] = []

    def run(self) -> None:
        self._subject.synchronize()
        begin = self._clock()
        self._subject()
        self._seconds.append(self._clock() - begin)
        self._subject.synchronize()

    @property
    def median_s(self) -> float | None:
        return median(self._seconds) if self._seconds else None


# Share of the time for the undisturbed runs.
_WATCHED_SHARE = 0.2
_MIN_RUNS = 3


def watch_machine(work: Measurement) -> None:
    """In separate runs: the total comes from runs with nothing attached."""
    # The counters are opened first: the sampler's thread is not the model's.
    with counting() as counted, sampling(work.subject.device) as samples:
        runs, end = 0, perf_counter() + _WATCHED_SHARE * work.plan.budget.seconds
        while runs < _MIN_RUNS or perf_counter() < end:
            work.run()
            runs += 1
    work.figures["system"] = samples.figures()
    if work.on_device:
        reason = "the model runs on the device, which the processor's counters do not see"
        work.figures["counters"] = {"absent": {"counters": reason}}
        return
    peaks = work.plan.peaks
    flops = sum(op.cost.flops for op in work.ops)
    bytes_per_s = peaks.bytes_per_s if peaks else None
    work.figures["counters"] = counted.figures(runs=runs, flops=flops, bytes_per_s=bytes_per_s)
