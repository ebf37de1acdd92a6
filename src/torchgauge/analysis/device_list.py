"""`devices`: the devices that predictions know, and what these rest on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A device for `on=`. `capacity_bytes` is what can be allocated of `memory_bytes`; rates are peaks, dense, by type.

    `memory_basis` and `time_basis` say what predictions rest on. 90 % of them are expected within `memory_error`, a
    share, and within a factor of 1 + `time_error`. `time_basis` is None where the maker publishes no rate
    of arithmetic. `source` is that of the peaks."""

    name: str
    title: str
    memory_bytes: int
    capacity_bytes: int
    flops_per_s: dict[str, float]
    bytes_per_s: float
    watts: float | None
    source: str
    memory_basis: str
    memory_error: float
    time_basis: str | None
    time_error: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def devices() -> list[KnownDevice]:
    """The devices that `fit`, `forecast` and `llm` know by name, with their peaks and the error of predictions for
    them."""
    from torchgauge.predict.devices import known_devices

    return [_known(device) for device in known_devices()]


def _known(device: Any) -> KnownDevice:
    from torchgauge.predict.fit import RESERVED_MARGIN
    from torchgauge.predict.time import profile_of, run_error

    peaks = device.listed.peaks
    basis, error = None, None
    if "float32" in peaks.flops_per_s:
        profile = profile_of(device)
        basis = profile.published[1] if profile.published and profile.source != "measured" else profile.source
        error = 2 ** run_error(profile) - 1
    kernels = "measured" if device.is_measured else "not compared" if device.has_cuda else "other kernels"
    return KnownDevice(
        device.name, device.title, device.nominal_bytes, device.capacity_bytes, dict(peaks.flops_per_s),
        peaks.bytes_per_s, peaks.watts, peaks.source, kernels, RESERVED_MARGIN * device.margin_times, basis, error,
    )  # fmt: skip
