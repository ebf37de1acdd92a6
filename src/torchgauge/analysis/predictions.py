"""What an analysis keeps of the devices it is asked about: the memory of its run there, and the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torchgauge.analysis.fitting import Case
from torchgauge.analysis.forecasting import find_subject, forecast_run
from torchgauge.errors import TorchgaugeError

if TYPE_CHECKING:
    from torchgauge.analysis.runs import Run

# What `forecast` calls its figures, and what an analysis, which has measured ones too, calls them.
FIGURES = {
    "time_s": "predicted_time_s", "low_s": "predicted_low_s", "high_s": "predicted_high_s",
    "energy_j": "predicted_energy_j", "energy_low_j": "predicted_energy_low_j",
    "energy_high_j": "predicted_energy_high_j",
}  # fmt: skip
_FACTS = ("device", "title", "mode", "execution", "batch", "bound")


def predict_on(run: Run, on: str | Sequence[str]) -> tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]:
    """Memory and time of a run on each device, from one trace. A processor has no memory to fit into, and the speed of
    a size of memory is not known: what can be predicted is kept, and the error is raised where nothing can."""
    from torchgauge.predict.allocator import AllocatorSettings
    from torchgauge.predict.devices import find_device, split_names

    fits, forecasts = [], []
    for name in split_names(on):
        memory, failure = None, None
        try:
            device, allocator = find_device(name), AllocatorSettings()
            memory = run.predict(device, allocator)
            facts = asdict(Case(run, device, allocator, memory).facts())
            fits.append({key: value for key, value in facts.items() if key not in ("timeline", "course")})
        except TorchgaugeError as error:
            failure = error
        try:
            row = vars(forecast_run(run, find_subject(name), "eager", memory))
            forecasts.append({key: row[key] for key in _FACTS} | {own: row[key] for key, own in FIGURES.items()})
        except TorchgaugeError:
            if failure is not None:
                raise failure from None
    return tuple(fits), tuple(forecasts)
