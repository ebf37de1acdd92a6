"""The energy meters of this machine: their update period and resolution, or why they cannot be read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchgauge.energy.meter import meters_of, offer


def offered(devices: Iterable[str]) -> list[dict[str, Any]]:
    """Of the devices by torch's names, as rows of `torchgauge system`; a meter of the whole machine is there once."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for device in devices:
        with meters_of(device) as found:
            for meter in found:
                row = offer(meter)
                rows.setdefault((row["name"], row["covers"]), _row(row))
    return list(rows.values())


def _row(offer: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": offer["name"],
        "device": offer["covers"],
        "available": offer["available"],
        "reason": offer["reason"],
        "update_period_s": offer["update_period_s"],
        "resolution": offer["resolution_j"],
        "resolution_unit": "J",
        "unit": offer["unit"],
    }
