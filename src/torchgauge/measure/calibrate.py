"""`torchgauge system`: what can be measured on this machine, and `--calibrate`: the rates that its devices reach."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Timer
from typing import Any

import psutil

from torchgauge.capture import death_text
from torchgauge.errors import TorchgaugeError
from torchgauge.hardware import Pace, Peaks, System, published_peaks, remember, remembered
from torchgauge.interpreter import python_command, python_environment
from torchgauge.measure.absence import Absent
from torchgauge.measure.rates import CALL, COPY, DEPTHWISE, GELU, PACE, PASSES, STD, TANH
from torchgauge.progress import Progress

DTYPES = ("float32", "tf32", "float64", "bfloat16", "float16", "float8", "int8")
# A part that takes longer, including importing torch, hangs.
_TIMEOUT_S = 90.0
# A load average above this share of the cores comes from other work.
_BUSY_SHARE = 0.5

Launch = Callable[[str, Sequence[str]], Iterator[str]]


@dataclass(slots=True)
class Calibrated:
    """The rates one device reached: operations per second by type, bytes per second copied; `absent` has the
    reasons."""

    device: str
    name: str
    flops_per_s: dict[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None
    absent: dict[str, str] = field(default_factory=dict)
    measured: str = ""
    notes: list[str] = field(default_factory=list)


class ProbeDiedError(Exception):
    """The measuring process ended early."""


def calibrate_device(
    device: str, name: str, how: str, progress: Progress | None = None, launch: Launch | None = None
) -> Calibrated:
    """Measure a device (`cpu`, `cuda:0`) and save its rates under its name; `how` says with what they were measured."""
    found = Calibrated(device, name, measured=f"{time.strftime('%Y-%m-%d')} {how}", notes=doubts(device))
    parts, pace = (*DTYPES, COPY, *(PACE if device == "cpu" else ())), dict[str, float]()
    for part, rate in measure_rates(device, parts, progress, launch or run_probe):
        if isinstance(rate, Absent):
            found.absent[part] = rate.reason
        elif part in PACE:
            pace[part] = rate
        elif part == COPY:
            found.bytes_per_s = rate
        else:
            found.flops_per_s[part] = rate
    if found.bytes_per_s is None:
        raise TorchgaugeError(f"{device} cannot be measured: {found.absent.get(COPY, 'no answer')}")
    whole = None
    if len(pace) == len(PACE):
        call, depthwise, tanh, gelu, std = (1 / pace[part] for part in (CALL, DEPTHWISE, TANH, GELU, STD))
        whole = Pace(call, depthwise, tanh, gelu, std, {size: pace[part] for part, size in PASSES.items()})
    remember(name, found.flops_per_s, found.bytes_per_s, found.measured, whole)
    return found


def doubts(device: str) -> list[str]:
    """Other work on the processor makes its rates too low."""
    busy = other_work() if device == "cpu" else None
    return [] if busy is None else [f"the machine was {busy}: the CPU's rates may be too low"]


def other_work() -> str | None:
    """`busy (load average 3.1 on 4 cores)`; None on an idle machine."""
    load, cores = psutil.getloadavg()[0], psutil.cpu_count() or 1
    return None if load < _BUSY_SHARE * cores else f"busy (load average {load:.1f} on {cores} cores)"


def measure_rates(
    device: str, parts: Sequence[str], progress: Progress | None = None, launch: Launch | None = None
) -> Iterator[tuple[str, float | Absent]]:
    """Each part in a separate process: if one dies, only its part is lost."""
    left = list(parts)
    while left:
        started, before = None, len(left)
        try:
            for line in (launch or run_probe)(device, tuple(left)):
                answer = _answer(line, left)
                if "begin" in answer:
                    started = str(answer["begin"])
                    if progress:
                        progress(len(parts) - len(left), len(parts), f"{device} {started}")
                    continue
                left.remove(part := str(answer["end"]))
                yield part, float(answer["rate"]) if "rate" in answer else Absent(str(answer["reason"]))
            if len(left) == before:
                raise ProbeDiedError("the measuring process ended without an answer")
        except ProbeDiedError as death:
            if started is None or started not in left:
                raise TorchgaugeError(f"{device} cannot be measured: {death}") from death
            left.remove(started)
            yield started, Absent(str(death))


def _answer(line: str, left: Sequence[str]) -> dict[str, Any]:
    """A line of the probe: the part that begins, or one that ends with its rate or the reason why it has none."""
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        keys, is_known = answer.keys(), str(answer.get("begin", answer.get("end"))) in left
        if is_known and (keys == {"begin"} or keys in ({"end", "rate"}, {"end", "reason"})):
            return answer
    raise ProbeDiedError(f"unexpected output of the measuring process: {line.strip()[:80]}")


def run_probe(device: str, parts: Sequence[str]) -> Iterator[str]:
    """The lines of `torchgauge.measure.rates`, as they come; with as many threads as this process uses."""
    import torch

    command = python_command("-m", "torchgauge.measure.rates", device, *parts)
    env = python_environment(OMP_NUM_THREADS=str(torch.get_num_threads()))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as probe:
        watch = _watch(probe)
        try:
            for line in probe.stdout or ():
                watch.cancel()
                watch = _watch(probe)
                yield line
            code = probe.wait()
        finally:
            watch.cancel()
            probe.kill()
    if code:
        raise ProbeDiedError(death_text(code))


def _watch(probe: subprocess.Popen[str]) -> Timer:
    watch = Timer(_TIMEOUT_S, probe.kill)
    watch.daemon = True
    watch.start()
    return watch


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """Published and measured side by side; neither if unknown."""

    device: str
    name: str
    published: Peaks | None
    measured: Peaks | None


def peaks(system: System) -> list[DevicePeaks]:
    devices = [
        ("cpu", "cpu", system.environment.cpu),
        *((device.kind, f"{device.kind}:{device.index}", device.name) for device in system.devices),
    ]
    # Apple's processor and its GPU share a name: the table holds the GPU's rates, the memory the processor's.
    return [
        DevicePeaks(
            device,
            name,
            published=None if kind == "cpu" else published_peaks(name),
            measured=None if kind == "mps" else remembered(name),
        )
        for kind, device, name in devices
    ]
