"""What an analysis keeps of the devices it is asked about: memory and time of its run there, by op and by module."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from torchgauge.analysis.fitting import Case
from torchgauge.analysis.forecasting import TimedRun, find_subject
from torchgauge.errors import ForwardError, InputError, TorchgaugeError, UsageError
from torchgauge.facts import EAGER, OpRecord, PredictedTimes
from torchgauge.facts.figures import Members

if TYPE_CHECKING:
    from torchgauge.analysis.runs import Run
    from torchgauge.facts.document_types import ForecastRow


class Predictions(NamedTuple):
    """`fits` and `forecasts` are rows of the document; `times` are of the first forecast. `warnings` say what of the
    model cannot be predicted."""

    fits: tuple[Members, ...]
    forecasts: tuple[ForecastRow, ...]
    times: PredictedTimes | None
    warnings: tuple[str, ...]


def predict_on(run: Run, on: str | Sequence[str], ops: Sequence[OpRecord], execution: str) -> Predictions:
    """Memory and time of a run on each device, from one trace. A processor has no memory to fit into, and the speed of
    a size of memory is not known: such a device has one of the two. A device that is not known at all is an error; a
    model that cannot be predicted, because its ops depend on values, is a warning: the analysis stands without.
    The time of a processor is predicted for eager execution only, whatever was asked for."""
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
                facts = asdict(Case(run, device, allocator, memory).facts())
                fits.append({key: value for key, value in facts.items() if key not in ("timeline", "course")})
            if subject is not None:
                timed.append(TimedRun.of(run, subject, execution if subject.device is not None else EAGER, memory))
        except (InputError, ForwardError) as error:
            warnings.append(f"no prediction for {name}: {error}")
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
