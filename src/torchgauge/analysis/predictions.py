"""What an analysis keeps of the devices it is asked about: the memory of its run there, and the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchgauge.analysis.fitting import Fit, fit
from torchgauge.analysis.forecasting import Forecast, forecast
from torchgauge.errors import TorchgaugeError

# What `forecast` calls its figures, and what an analysis, which has measured ones too, calls them.
FIGURES = {
    "time_s": "predicted_time_s", "low_s": "predicted_low_s", "high_s": "predicted_high_s",
    "energy_j": "predicted_energy_j", "energy_low_j": "predicted_energy_low_j",
    "energy_high_j": "predicted_energy_high_j",
}  # fmt: skip
_FACTS = ("device", "title", "mode", "execution", "batch", "bound")


def predict_on(
    target: Any, on: str | Sequence[str], options: Mapping[str, Any], progress: bool | None
) -> tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]:
    """`fit` and `forecast` of each device. A processor has no memory to fit into, and the speed of a size of memory is
    not known: what can be predicted is kept, and the error is raised where nothing can."""
    names = [part.strip() for text in ([on] if isinstance(on, str) else on) for part in text.split(",")]
    fits, forecasts = [], []
    for name in filter(None, names):
        failure: TorchgaugeError | None = None
        try:
            found = fit(target, on=name, **options, progress=progress)
            assert isinstance(found, Fit)
            facts = found.to_dict(remedies=False)
            fits.append({key: value for key, value in facts.items() if key not in ("timeline", "course")})
        except TorchgaugeError as error:
            failure = error
        try:
            timed = forecast(target, on=name, **options, progress=progress)
            assert isinstance(timed, Forecast)
            row = timed.to_dict()
            known = {key: row[key] for key in _FACTS}
            forecasts.append(known | {own: row[key] for key, own in FIGURES.items()})
        except TorchgaugeError:
            if failure is not None:
                raise failure from None
    return tuple(fits), tuple(forecasts)
