"""Apple's processors: `powermetrics` reports their power, to root only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from torchgauge.energy.meter import WATTS, FunctionMeter, Meter, meters
from torchgauge.measure.absence import Absent

_SAMPLE_S = 0.2
_MILLI = 1e-3
_COMMAND = ("powermetrics", "--samplers", "cpu_power,gpu_power", "-n", "1", "-i", str(int(_SAMPLE_S * 1e3)))
# The line of powermetrics' output, by torch's type of device.
_LINES = {"cpu": "CPU Power", "mps": "GPU Power"}


@meters("powermetrics")
def apple_meters(device: str, stack: ExitStack, run: Callable[[], str] | None = None) -> Iterator[Meter]:
    """`run` returns the output of powermetrics."""
    kind = device.partition(":")[0]
    if kind == "mps" or (kind == "cpu" and sys.platform == "darwin"):
        yield FunctionMeter("powermetrics", device, WATTS, _SAMPLE_S, _MILLI * _SAMPLE_S, lambda: power_w(kind, run))


def power_w(kind: str, run: Callable[[], str] | None = None) -> float | Absent:
    if run is None:
        if sys.platform != "darwin":
            return Absent("powermetrics is a tool of macOS")
        if os.geteuid() != 0:
            return Absent("powermetrics needs root: run torchgauge with sudo")
    try:
        text = (
            subprocess.run(_COMMAND, capture_output=True, text=True, check=True, timeout=10).stdout
            if run is None
            else run()
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Absent(f"powermetrics: {error}")
    found = re.search(rf"^{_LINES[kind]}: (\d+) mW", text, re.MULTILINE)
    return int(found[1]) * _MILLI if found else Absent(f"powermetrics does not report the {_LINES[kind]}")
