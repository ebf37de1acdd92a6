"""`forecast`: how long a run takes on a device that one need not have, and at what energy. And `predict_on`: memory and
time of an analysed run on the devices that the user names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torchgauge.analysis.fitting import Case
from torchgauge.analysis.isolated import isolation_remarks, require_isolated
from torchgauge.analysis.runs import Run, RunOptions
from torchgauge.errors import ForwardError, InputError, TorchgaugeError, UsageError
from torchgauge.facts import (
    COMPILED,
    EAGER,
    FitFacts,
    ForecastFacts,
    ModuleForecast,
    OpForecast,
    OpRecord,
    PredictedTimes,
    forecast_row,
)
from torchgauge.facts.plausibility import forecast_limits
from torchgauge.facts.schema import read_records
from torchgauge.registry import collector_paused
from torchgauge.report.forecast import ForecastReport
from torchgauge.report.predictions import render_fragment
from torchgauge.report.table_rows import frame
from torchgauge.units import parse_sizes

if TYPE_CHECKING:
    import pandas
    import torch

    from torchgauge.facts.document_types import ForecastRow
    from torchgauge.predict.devices import Device
    from torchgauge.predict.fit import Prediction
    from torchgauge.predict.time import Profile, RunTime
    from torchgauge.source import InputSpec

Row = TypeVar("Row", bound=Mapping[str, object])
GRAPH = "graph"
EXECUTIONS = ("eager", GRAPH, "compiled")
AUTO = "auto"
# Batches that "auto" tries, until one does not fit or brings less than this.
_MAX_BATCHES, _WORTH = 11, 1.03


def forecast(
    target: str | os.PathLike[str] | torch.nn.Module,
    input_size: Any = None,
    *,
    on: str | Sequence[str] = "h200",
    mode: str = "inference",
    execution: str = "eager",
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    batch: int | str | Sequence[int] | None = None,
    seq: int | str | Sequence[int] | None = None,
    specs: Sequence[InputSpec] = (),
    dtype: torch.dtype | str | None = None,
    optimizer: Any = "adamw",
    loss: Callable[[Any], Any] | None = None,
    amp: str | torch.dtype | None = None,
    channels_last: bool = False,
    price: Mapping[str, float] | None = None,
    torch_version: str | None = None,
    code: Any = None,
    allow_pickle: bool = False,
    progress: bool | None = None,
    memory_limit: int | str | None = None,
    time_limit: float | None = None,
    require_isolation: bool = False,
) -> Forecast | Forecasts:
    """Predict the time and energy of a run on a device that need not exist here: one `Forecast`, or a list for several
    devices or batches. The model is not changed.

    - `on`: devices (`h200`, `rtx4090`); `this` and `cpu` are this machine, as `torchgauge system --calibrate`
      measured it.
    - `execution`: "eager", "graph" (a CUDA graph that is replayed) or "compiled" (with the kernels that Inductor
      fuses).
    - `batch`: one or several, or "auto": doubled as long as that raises the throughput and fits.
    - `mode`, `optimizer`, `loss` and `amp`: as in `fit`.
    - `price`: money per hour, by device.

    A file is read in a process without rights, limited by `memory_limit` and `time_limit`. `require_isolation`:
    refuse it where a part of the isolation is missing.
    """
    if require_isolation:
        require_isolated(target, allow_pickle=allow_pickle)
    options = RunOptions(
        target=target, mode=mode, inputs=inputs, kwargs=kwargs, input_size=input_size, specs=specs, dtype=dtype,
        optimizer=optimizer, loss=loss, amp=amp, channels_last=channels_last, torch_version=torch_version, code=code,
        allow_pickle=allow_pickle, progress=progress,
    )  # fmt: skip
    if execution not in EXECUTIONS:
        raise UsageError(f"no execution '{execution}'; one of: {', '.join(EXECUTIONS)}")
    batches = None if batch == AUTO else parse_sizes(batch, "batch")
    job = partial(_predict, options, on, batches, parse_sizes(seq, "seq"), execution, dict(price or {}))
    if options.needs_isolation:
        rows = options.read(
            partial(_facts, job),
            lambda found: read_records(found, ForecastFacts, "the forecast"),
            memory_limit,
            time_limit,
        )
    else:
        rows = job()
    found = Forecasts(Forecast.of(row) for row in rows)
    return found[0] if len(found) == 1 else found


def _facts(job: Callable[[], list[ForecastFacts]]) -> list[dict[str, object]]:
    return [vars(facts) for facts in job()]


@collector_paused()  # thousands of rows that stay: a collection would walk all of them, and the trace
def _predict(
    options: RunOptions,
    on: str | Sequence[str],
    batches: list[int | None] | None,
    lengths: list[int | None],
    execution: str,
    price: dict[str, float],
) -> list[ForecastFacts]:
    """A forecast for every device, length and batch; `batches` None: those of "auto"."""
    from torchgauge.predict.devices import split_names

    subjects = [find_subject(name) for name in split_names(on)]
    if not subjects:
        raise UsageError("no device: give one with on= or --on, such as h200 or rtx4090")
    unknown = [name for name in price if name not in {subject.name for subject in subjects}]
    if unknown:
        raise UsageError(f"a price for '{unknown[0]}', which is not among the devices asked for")
    found: list[ForecastFacts] = []
    with options.opened("time") as model:
        for length in lengths:
            run_of = cache(partial(options.run, model, seq=length, captured=execution == GRAPH))  # shared by devices

            def predicted(subject: Subject, batch: int | None, run_of: Callable[..., Run] = run_of) -> ForecastFacts:
                return TimedRun.of(run_of(batch), subject, execution).facts(price.get(subject.name))

            for subject in subjects:
                predict = partial(predicted, subject)
                found += map(predict, batches) if batches else _growing(predict, run_of(None).batch)
    return found


@dataclass(frozen=True)
class Subject:
    """A GPU by its name, or this machine's processor."""

    name: str
    profile: Profile
    device: Device | None


def find_subject(name: str) -> Subject:
    from torchgauge.predict.calibration import present_profile
    from torchgauge.predict.devices import find_device
    from torchgauge.predict.time import profile_of

    if name in ("this", "cpu") or name.endswith(".npz"):
        return Subject(name, *present_profile(name))
    device = find_device(name)
    return Subject(name, profile_of(device), device)


def _growing(predicted: Callable[[int | None], ForecastFacts], batch: int | None) -> list[ForecastFacts]:
    """Batches of 1, 2, 4, … as long as the next one raises the throughput and fits."""
    if batch is None:
        raise UsageError("batch='auto' needs inputs with a common batch")
    rows: list[ForecastFacts] = []
    for size in (2**power for power in range(_MAX_BATCHES)):
        row = predicted(size)
        if row.fit == "does not fit":
            break
        rows.append(row)
        # The one before had half the batch.
        if len(rows) > 1 and 2 * rows[-2].time_s < _WORTH * row.time_s:
            break
    return rows or [predicted(1)]


@dataclass(frozen=True)
class TimedRun:
    """A run on a device: its time op by op, and its memory where the device has one to fit into."""

    run: Run
    subject: Subject
    time: RunTime
    memory: Prediction | None
    warnings: Sequence[str] = ()

    @classmethod
    def of(cls, run: Run, subject: Subject, execution: str, memory: Prediction | None = None) -> TimedRun:
        """`memory` is what `run.predict` gave for the device, where that is known already."""
        from torchgauge.predict.allocator import AllocatorSettings
        from torchgauge.predict.time import predict_ops

        if subject.device is None and execution != "eager":
            raise UsageError(f"execution='{execution}' needs a GPU; a CPU runs 'eager'")
        if subject.device is None:
            ops, calls = run.processor_ops()
            return cls(run, subject, predict_ops(ops, subject.profile, module_calls=calls), None)
        memory = memory or run.predict(subject.device, AllocatorSettings(), detail=False)
        trace = memory.trace
        compiled, remark = run.compiled if execution == COMPILED else (None, None)
        time = predict_ops(
            trace.step_ops, subject.profile, execution=execution, module_calls=trace.module_calls, compiled=compiled
        )
        return cls(run, subject, time, memory, (*trace.warnings, *([remark] if remark else [])))

    def facts(self, price_per_hour: float | None = None) -> ForecastFacts:
        from torchgauge.predict.time import module_times

        run, subject, time = self.run, self.subject, self.time
        return ForecastFacts(
            device=subject.name,
            title=subject.profile.title,
            target=run.name,
            mode="train" if run.setting.train else "inference",
            execution=time.execution,
            batch=run.batch,
            seq=run.sizes[1],
            time_s=time.time_s,
            low_s=time.low_s,
            high_s=time.high_s,
            energy_j=time.energy_j,
            energy_low_j=time.energy_low_j,
            energy_high_j=time.energy_high_j,
            device_s=time.device_s,
            host_s=time.host_s,
            bound=time.bound,
            fit=self.memory.verdict if self.memory is not None else None,
            used_bytes=self.memory.used_bytes if self.memory is not None else None,
            price_per_hour=price_per_hour,
            sources=time.sources,
            host_source=subject.profile.host.source,
            ops=[forecast_limits(row) for row in time.ops if row["device_s"]],
            modules=module_times(time.ops),
            warnings=[*isolation_remarks(), *self.warnings],
        )


@dataclass(frozen=True)
class Forecast(ForecastFacts):
    """Time and energy of one run, a batch or a training step, with 90 % intervals; all of it predicted.

    `bound` is what most of the time goes to: "host" (the device waits for the CPU), "compute", "memory" or "launch"
    (kernels shorter than their fixed overhead). `ops` and `modules` have `time_s`, `low_s`, `high_s`, `energy_j`; ops
    also where the figure is from (`source`) and how near the op is to the device's roof. `fit` is the memory's verdict.
    """

    ops: Table[OpForecast] = field(repr=False)
    modules: Table[ModuleForecast] = field(repr=False)

    @classmethod
    def of(cls, facts: ForecastFacts) -> Forecast:
        return cls(**(vars(facts) | {"ops": Table(facts.ops), "modules": Table(facts.modules)}))

    def to_dict(self) -> dict[str, Any]:
        return forecast_row(self)

    def __str__(self) -> str:
        return str(ForecastReport([self]))

    def _repr_html_(self) -> str:
        return render_fragment(ForecastReport([self]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a report; the suffix names the format."""
        ForecastReport([self]).save(os.fspath(path))


class Table(list[Row]):
    """Rows, as a data frame on request."""

    def to_dataframe(self) -> pandas.DataFrame:
        return frame(self)


class Forecasts(list[Forecast]):
    """Forecasts for several devices or batches."""

    def to_dataframe(self) -> pandas.DataFrame:
        return frame(ForecastReport(self).table())

    def __str__(self) -> str:
        return str(ForecastReport(self))

    def _repr_html_(self) -> str:
        return render_fragment(ForecastReport(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a report; the suffix names the format."""
        ForecastReport(self).save(os.fspath(path))


class Predictions(NamedTuple):
    """`forecasts` are rows of the document; `times` are of the first forecast. `warnings` say what of the
    model cannot be predicted."""

    fits: tuple[FitFacts, ...]
    forecasts: tuple[ForecastRow, ...]
    times: PredictedTimes | None
    warnings: tuple[str, ...]


def predict_on(run: Run, on: str | Sequence[str], ops: Sequence[OpRecord], execution: str) -> Predictions:
    """Memory and time of a run on each device, from one trace. A processor has no memory to fit into, and the speed of
    a size of memory is not known: such a device has one of the two. A device that is not known at all is an error; a
    model that cannot be predicted, because its ops depend on values, gives a warning, and the analysis is returned
    without a prediction.
    The time of a processor is always predicted for eager execution."""
    from torchgauge.predict.allocator import AllocatorSettings
    from torchgauge.predict.devices import find_device, split_names
    from torchgauge.predict.op_times import times_of

    fits, timed, warnings = [], [], []
    for name in split_names(on):
        device = subject = memory = None
        try:
            device = find_device(name)
        except TorchgaugeError:
            subject = find_subject(name)
        if device is not None:
            with suppress(UsageError):
                subject = find_subject(name)
        try:
            if device is not None:
                allocator = AllocatorSettings()
                memory = run.predict(device, allocator)
                fits.append(replace(Case(run, device, allocator, memory).facts(), timeline=[], course={}))
            if subject is not None:
                timed.append(TimedRun.of(run, subject, execution if subject.device is not None else EAGER, memory))
        except (InputError, ForwardError) as error:
            warnings.append(f"no prediction of the whole run on {name}: {error}")
    rows: list[ForecastRow] = []
    for one in timed:
        time, rates = one.facts(), one.subject.profile.rates
        rows.append(
            {
                "device": time.device,
                "title": time.title,
                "mode": time.mode,
                "execution": time.execution,
                "batch": time.batch,
                "bound": time.bound,
                "warnings": time.warnings,
                "predicted_time_s": time.time_s,
                "predicted_low_s": time.low_s,
                "predicted_high_s": time.high_s,
                "predicted_energy_j": time.energy_j,
                "predicted_energy_low_j": time.energy_low_j,
                "predicted_energy_high_j": time.energy_high_j,
                "peaks": {"flops_per_s": dict(rates.flops_per_s), "bytes_per_s": rates.bytes_per_s},
            }
        )
    times = times_of(ops, timed[0].time.ops) if timed else None
    return Predictions(tuple(fits), tuple(rows), times, tuple(warnings))
