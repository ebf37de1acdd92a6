"""The battery's discharge, the last resort: of the whole machine, and only while it runs on it (Linux)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from torchgauge.energy.meter import MACHINE, WATTS, FunctionMeter, Meter, meters
from torchgauge.measure.absence import Absent

SUPPLIES = Path("/sys/class/power_supply")
# Firmware differs; most batteries update every second or two.
_UPDATE_S = 2.0
# Steps of 10 mW are common; kernel interface: microwatts, microamperes and microvolts.
_STEP_W = 0.01
_MICRO = 1e-6


@meters("battery")
def battery_meters(device: str, stack: ExitStack, folder: Path = SUPPLIES) -> Iterator[Meter]:
    yield FunctionMeter("battery", MACHINE, WATTS, _UPDATE_S, _STEP_W * _UPDATE_S, lambda: discharge_w(folder))


def discharge_w(folder: Path = SUPPLIES) -> float | Absent:
    """The power that all batteries together deliver."""
    try:
        batteries = [path.parent for path in sorted(folder.glob("*/type")) if path.read_text().strip() == "Battery"]
        if not batteries:
            return Absent("no battery here")
        states = [(battery / "status").read_text().strip() for battery in batteries]
        if "Discharging" not in states:
            return Absent(f"the machine does not run on its battery ({', '.join(states).lower()})")
        watts = 0.0
        for battery in batteries:
            if (battery / "power_now").exists():
                watts += abs(int((battery / "power_now").read_text())) * _MICRO
            else:
                current, voltage = (
                    int((battery / name).read_text()) * _MICRO for name in ("current_now", "voltage_now")
                )
                watts += abs(current) * voltage
        return watts
    except (OSError, ValueError) as error:
        return Absent(f"the battery cannot be read: {error}")
