"""What this machine lets torchgauge know and measure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torchgauge.hardware import Peaks, System, published_peaks, remembered
from torchgauge.measure import counters, sampler


def offers(system: System) -> dict[str, Any]:
    """Plain JSON: peaks of the devices, quantities that can be sampled, counters that can be read."""
    cuda = sum(device.kind == "cuda" for device in system.devices)
    return {"peaks": peaks(system), "sensors": sampler.offered(cuda), "counters": counters.offered()}


def peaks(system: System) -> list[dict[str, Any]]:
    """Published and measured side by side; neither if unknown."""
    devices = [
        ("cpu", "cpu", system.environment.cpu),
        *((device.kind, f"{device.kind}:{device.index}", device.name) for device in system.devices),
    ]
    return [
        {
            "device": device,
            "name": name,
            # Apple's processor and its GPU share a name: the table holds the GPU's rates, the memory the processor's.
            "published": None if kind == "cpu" else _plain(published_peaks(name)),
            "measured": None if kind == "mps" else _plain(remembered(name)),
        }
        for kind, device, name in devices
    ]


def _plain(found: Peaks | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found) | {"flops_per_s": dict(found.flops_per_s)}
