"""`forecast`: how long a run takes on a device that one need not have, and at what energy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from torchgauge.analysis.fitting import MODES, Run, as_amp, library_of, require_picklable
from torchgauge.analysis.isolated import needs_isolation, read_data
from torchgauge.analysis.options import chosen_dtype, stored_path, unwrapped
from torchgauge.errors import InputError, UsageError, errors_as_torchgauge
from torchgauge.progress import stage
from torchgauge.schema import conform

if TYPE_CHECKING:
    import torch

    from torchgauge.predict.devices import Device
    from torchgauge.predict.time import Profile, RunTime
    from torchgauge.source import InputSpec

EXECUTIONS = ("eager", "graph", "compiled")
AUTO = "auto"
# Batches that "auto" tries, until one does not fit or brings less than this.
_MOST_BATCHES, _WORTH = 11, 1.03


def forecast(
    target: str | os.PathLike[str] | torch.nn.Module,
    *,
    on: str | Sequence[str] = "h200",
    mode: str = "inference",
    execution: str = "eager",
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    input_size: Any = None,
    batch: int | str | Sequence[int] | None = None,
    seq: int | None = None,
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
) -> Forecast | Forecasts:
    """Predict time and energy of a run on a device, without the device: a `Forecast`, or a list for several devices or
    batches.

    `on` names devices (`h200`, `rtx4090`; `this` and `cpu` are this machine, as `torchgauge system --calibrate` found
    it). `execution` is "eager", "graph" (a CUDA graph that is replayed) or "compiled" (pointwise chains in one kernel).
    `batch` may be several, or "auto": doubled as long as that raises the throughput and fits. `mode`, `optimizer`,
    `loss` and `amp` are those of `fit`. `price` is money per hour by device. The model is not changed; a file is read
    in a process without rights.
    """
    if mode not in MODES:
        raise UsageError(f"no mode '{mode}'; one of: {', '.join(MODES)}")
    if execution not in EXECUTIONS:
        raise UsageError(f"no execution '{execution}'; one of: {', '.join(EXECUTIONS)}")
    given = {"inputs": inputs, "kwargs": kwargs, "input_size": input_size, "seq": seq, "specs": specs}
    changes = {"dtype": chosen_dtype(dtype), "amp": as_amp(amp), "loss": loss, "channels_last": channels_last}
    job = partial(
        _facts, target, on, given, _batches(batch), changes, optimizer if mode == "train" else None, execution,
        dict(price or {}), torch_version, code, allow_pickle, progress,
    )  # fmt: skip
    if needs_isolation(target, allow_pickle):
        path = str(stored_path(target))
        if loss is not None:
            require_picklable(loss)
        told = read_data(
            job, paths=[path], memory_limit=memory_limit, time_limit=time_limit, needs_torch=True, mode=mode
        )
        rows = conform(told, list[ForecastFacts], f"the forecast for '{path}'")
    else:
        rows = job()
    found = Forecasts(Forecast.of(row) for row in rows)
    return found[0] if len(found) == 1 else found


def _batches(asked: int | str | Sequence[int] | None) -> list[int | None] | str:
    if asked == AUTO:
        return AUTO
    if asked is None or isinstance(asked, int):
        sizes: list[Any] = [asked]
    elif isinstance(asked, str):
        sizes = [part.strip() for part in asked.split(",")]
    else:
        sizes = list(asked)
    try:
        numbers = [None if size is None else int(size) for size in sizes]
    except (TypeError, ValueError):
        numbers = [0]
    if not numbers or any(number is not None and number < 1 for number in numbers):
        raise UsageError(f"batch is a positive number, several, or 'auto', not '{asked}'")
    return numbers


class ForecastFacts(TypedDict):
    """A forecast as JSON has it."""

    device: str
    title: str
    target: str
    mode: str
    execution: str
    batch: int | None
    time_s: float
    low_s: float
    high_s: float
    energy_j: float | None
    energy_low_j: float | None
    energy_high_j: float | None
    device_s: float
    host_s: float
    bound: Literal["host", "compute", "memory", "launch"]
    fit: str | None
    used_bytes: int | None
    price_per_hour: float | None
    sources: dict[str, float]
    host_source: str
    ops: list[dict[str, Any]]
    modules: list[dict[str, Any]]
    warnings: list[str]


def _facts(
    target: Any,
    on: str | Sequence[str],
    given: dict[str, Any],
    batches: list[int | None] | str,
    changes: dict[str, Any],
    optimizer: Any,
    execution: str,
    price: dict[str, float],
    torch_version: str | None,
    code: Any,
    allow_pickle: bool,
    progress: bool | None,
) -> list[ForecastFacts]:
    from torchgauge.predict.devices import find_device
    from torchgauge.predict.optimizers import make_optimizer
    from torchgauge.predict.steps import Setting
    from torchgauge.source import resolve

    subjects = _subjects(on)
    unknown = [name for name in price if name not in {subject.name for subject in subjects}]
    if unknown:
        raise UsageError(f"a price for '{unknown[0]}', which is not among the devices asked for")
    first = next((subject.device for subject in subjects if subject.device is not None), find_device("h200"))
    make = None if optimizer is None else make_optimizer(optimizer)
    setting = Setting(library_of(first, torch_version), train=optimizer is not None, optimizer=make, **changes)
    with errors_as_torchgauge(stored_path(target)), stage("predicting time", shown=progress) as tell:
        source = resolve(unwrapped(target), code=code, allow_pickle=allow_pickle, progress=tell)
        if source.model is None:
            raise InputError("weights alone do not say how long a run takes: add the code (--as file.py:Net)")
        name = os.fspath(target) if isinstance(target, str | os.PathLike) else type(source.model).__name__
        # Inputs that are given are resized; those that are inferred are made with the batch.
        is_given = given["inputs"] is not None or given["input_size"] is not None or bool(given["specs"])
        sized = {"batch": None if isinstance(batches, str) or is_given else batches[0]}
        run = Run(source.model, given | sized, setting, torch_version, name)
        runs: dict[int | None, Run] = {}

        def predicted(subject: Subject, batch: int | None) -> ForecastFacts:
            if batch not in runs:
                runs[batch] = run if batch in (None, run.batch) else run.with_batch(batch)
            return _one(runs[batch], subject, execution, price.get(subject.name))

        if isinstance(batches, str):
            return [row for subject in subjects for row in _growing(partial(predicted, subject), run.batch)]
        return [predicted(subject, batch) for subject in subjects for batch in batches]


@dataclass(frozen=True)
class Subject:
    """A GPU by its name, or this machine's processor."""

    name: str
    profile: Profile
    device: Device | None


def _subjects(on: str | Sequence[str]) -> list[Subject]:
    from torchgauge.predict.calibration import present_profile
    from torchgauge.predict.devices import find_device
    from torchgauge.predict.time import profile_of

    found = []
    for name in [on] if isinstance(on, str) else list(on):
        for part in filter(None, map(str.strip, name.split(","))):
            if part in ("this", "cpu") or part.endswith(".npz"):
                profile, device = present_profile(part)
                found.append(Subject(part, profile, device))
            else:
                device = find_device(part)
                found.append(Subject(part, profile_of(device), device))
    if not found:
        raise UsageError("no device: give one with on= or --on, such as h200 or rtx4090")
    return found


def _growing(predicted: Callable[[int | None], ForecastFacts], batch: int | None) -> list[ForecastFacts]:
    """Batches of 1, 2, 4, … as long as that is worth it."""
    if batch is None:
        raise UsageError("batch='auto' needs inputs with a common batch")
    rows: list[ForecastFacts] = []
    for power in range(_MOST_BATCHES):
        row = predicted(2**power)
        if row["fit"] == "does not fit":
            break
        is_worth = not rows or 2**power / row["time_s"] > _WORTH * rows[-1]["batch"] / rows[-1]["time_s"]  # type: ignore[operator]
        rows.append(row)
        if not is_worth:
            break
    return rows or [predicted(1)]


def _one(run: Run, subject: Subject, execution: str, price: float | None) -> ForecastFacts:
    from torchgauge.predict.time import module_times, predict_ops

    fit, used, warnings = None, None, list[str]()
    ops: Sequence[Any]
    if subject.device is not None:
        from torchgauge.predict.allocator import AllocatorSettings

        memory = run.predict(subject.device, AllocatorSettings(), detail=False)
        fit, used = memory.verdict, memory.used_bytes
        trace = memory.trace
        ops, calls, warnings = trace.step_ops, trace.module_calls, list(trace.warnings)
    else:
        if execution != "eager":
            raise UsageError(f"execution='{execution}' is of GPUs; a CPU runs 'eager'")
        ops, calls = run.processor_ops()
    found: RunTime = predict_ops(ops, subject.profile, execution=execution, module_calls=calls)
    return {
        "device": subject.name,
        "title": subject.profile.title,
        "target": run.name,
        "mode": "train" if run.setting.train else "inference",
        "execution": execution,
        "batch": run.batch,
        "time_s": found.time_s,
        "low_s": found.low_s,
        "high_s": found.high_s,
        "energy_j": found.energy_j,
        "energy_low_j": found.energy_low_j,
        "energy_high_j": found.energy_high_j,
        "device_s": found.device_s,
        "host_s": found.host_s,
        "bound": found.bound,  # type: ignore[typeddict-item]
        "fit": fit,
        "used_bytes": used,
        "price_per_hour": price,
        "sources": found.sources,
        "host_source": subject.profile.host.source,
        "ops": [
            asdict(row) | {"output_shapes": [list(shape) for shape in row.output_shapes]}
            for row in found.ops
            if row.device_s
        ],
        "modules": module_times(found.ops),
        "warnings": warnings,
    }


@dataclass(frozen=True)
class Forecast:
    """Time and energy of one run, a batch or a training step, with 90 % intervals; all of it predicted.

    `bound` is what most of the time goes to: "host" (the device waits for the CPU), "compute", "memory" or "launch"
    (kernels shorter than their fixed overhead). `ops` and `modules` have `time_s`, `low_s`, `high_s`, `energy_j`; ops
    also where the figure is from (`source`) and how near the op is to the device's roof. `fit` is the memory's verdict.
    """

    device: str
    title: str
    target: str
    mode: str
    execution: str
    batch: int | None
    time_s: float
    low_s: float
    high_s: float
    energy_j: float | None
    energy_low_j: float | None
    energy_high_j: float | None
    device_s: float
    host_s: float
    bound: str
    fit: str | None
    used_bytes: int | None
    price_per_hour: float | None
    sources: dict[str, float]
    host_source: str
    ops: Table = field(repr=False)
    modules: Table = field(repr=False)
    warnings: list[str] = field(repr=False)

    @classmethod
    def of(cls, facts: ForecastFacts) -> Forecast:
        known: dict[str, Any] = {item.name: facts.get(item.name) for item in fields(cls)}
        return cls(**(known | {"ops": Table(facts["ops"]), "modules": Table(facts["modules"])}))

    @property
    def samples(self) -> int:
        return self.batch or 1

    @property
    def per_sample(self) -> dict[str, float | None]:
        """Time, energy and price of one sample, and samples per second."""
        count = self.samples
        price = self.price_per_hour
        return {
            "time_s": self.time_s / count,
            "low_s": self.low_s / count,
            "high_s": self.high_s / count,
            "energy_j": None if self.energy_j is None else self.energy_j / count,
            "throughput_per_s": count / self.time_s if self.time_s else None,
            "price_per_million": None if price is None else price / 3600 * self.time_s / count * 1e6,
        }

    def to_dict(self) -> dict[str, Any]:
        facts = {item.name: getattr(self, item.name) for item in fields(self)}
        return facts | {"per_sample": self.per_sample, "ops": list(self.ops), "modules": list(self.modules)}

    def __str__(self) -> str:
        return str(Forecasts([self]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a report; the suffix says which: .html, .json, .csv, .svg, .md, .tex, .txt."""
        Forecasts([self]).save(path)


class Table(list[dict[str, Any]]):
    """Rows, as a data frame on request."""

    def to_dataframe(self) -> Any:
        from torchgauge.report.dataframe import frame

        return frame(list(self))


class Forecasts(list[Forecast]):
    """Forecasts for several devices or batches."""

    def to_dataframe(self) -> Any:
        from torchgauge.report.dataframe import frame
        from torchgauge.report.forecast import flat_rows

        return frame(flat_rows(forecast_document(self)))

    def __str__(self) -> str:
        from torchgauge.report.documents import document_text

        return document_text(forecast_document(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a report; the suffix says which: .html, .json, .csv, .svg, .md, .tex, .txt."""
        from torchgauge.report.documents import save_document

        save_document(forecast_document(self), os.fspath(path))


def best_batches(found: Iterable[Forecast]) -> dict[str, int]:
    """By device the batch with the highest throughput among those that may fit."""
    best: dict[str, Forecast] = {}
    for one in found:
        if one.batch is not None and one.fit != "does not fit":
            kept = best.get(one.device)
            if kept is None or one.samples / one.time_s > kept.samples / kept.time_s:
                best[one.device] = one
    return {device: one.samples for device, one in best.items()}


def forecast_document(found: Sequence[Forecast]) -> dict[str, Any]:
    from torchgauge import __version__

    return {
        "schema_version": 1,
        "tool": {"name": "torchgauge", "version": __version__},
        "forecast": [one.to_dict() for one in found],
        "best_batch": best_batches(found),
    }
