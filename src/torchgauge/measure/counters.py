"""The processor's own counters over a run: operations, caches, vector width, memory traffic.

    with counting() as counted:
        run()
    counted.figures(runs=1, flops=…)

Memory controllers, which the kernel describes in sysfs, count for the whole machine. Counters that this machine lacks
are listed with the reason.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from torchgauge.measure.absence import Absent, Instrument
from torchgauge.measure.perf_events import (
    HARDWARE,
    SOFTWARE,
    Count,
    Event,
    FloatEvent,
    Kernel,
    float_events,
    kernel,
    this_processor,
    uncounted_work,
)
from torchgauge.measure.readings import page_faults

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Counters

DEVICES = Path("/sys/bus/event_source/devices")
# By the names that Intel's server and client parts use.
_READ = ("cas_count_read", "data_reads", "data_read")
_WRITTEN = ("cas_count_write", "data_writes", "data_write")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "64B": 64}


def memory_events(devices: Path = DEVICES) -> list[Event] | Absent:
    """Reads and writes of every controller; `scale` converts counts to bytes."""
    found: list[Event] = []
    for controller in sorted(devices.glob("uncore_imc*")):
        events = controller / "events"
        for kind, names in (("memory_read_bytes", _READ), ("memory_written_bytes", _WRITTEN)):
            name = next((name for name in names if (events / name).exists()), None)
            if name is None:
                continue
            config = _config(_text(events / name), controller / "format")
            unit = _UNITS.get(_text(events / f"{name}.unit"))
            if config is None or unit is None:
                continue
            scale = float(_text(events / f"{name}.scale") or 1) * unit
            number = int(_text(controller / "type"))
            # `0,32`: one processor for every socket.
            sockets = [part for part in _text(controller / "cpumask").split(",") if part]
            found += [Event(kind, number, config, int(part.partition("-")[0]), scale) for part in sockets]
    return found or Absent("the kernel exposes no counters of the memory controllers")


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _config(terms: str, formats: Path) -> int | None:
    """`event=0x04,umask=0x03` by the bits that the format files give each term; None if a term is in another word."""
    config = 0
    for term in terms.split(","):
        name, _, value = term.partition("=")
        place = re.fullmatch(r"config:(\d+)(?:-\d+)?", _text(formats / name))
        if place is None:
            return None
        config |= int(value or "1", 0) << int(place[1])
    return config


# The kernel's generalized events; its cache events are those of the last level on Intel, of the second on AMD.
GENERAL = (
    Event("cycles", HARDWARE, 0),
    Event("instructions", HARDWARE, 1),
    Event("cache_references", HARDWARE, 2),
    Event("cache_misses", HARDWARE, 3),
    Event("task_clock_s", SOFTWARE, 1, scale=1e-9),
    Event("page_faults", SOFTWARE, 2),
)
_FLOPS, _MEMORY = "flops", "memory_bytes"
# Open files left for the process itself while it runs.
_SPARE_FILES = 128


@dataclass(slots=True)
class Counted:
    """Sums over the threads, scaled to the whole time; complete when the block has ended."""

    values: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    floats: list[FloatEvent] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    least_running_share: float = 1.0

    def figures(self, *, runs: int = 1, flops: float | None = None, bytes_per_s: float | None = None) -> Counters:
        """Plain JSON, per run: `flops` is what the static count says a run does, `bytes_per_s` the memory's peak."""
        found = {name: value / runs for name, value in self.values.items()}
        missed = _ratio(found.get("cache_misses"), found.get("cache_references"))
        seconds = self.seconds / runs
        read, written = found.get("memory_read_bytes"), found.get("memory_written_bytes")
        rate = (read + written) / seconds if read is not None and written is not None and seconds else None
        return {
            "runs": runs,
            "cycles": found.get("cycles"),
            "instructions": found.get("instructions"),
            "cache_references": found.get("cache_references"),
            "cache_misses": found.get("cache_misses"),
            "task_clock_s": found.get("task_clock_s"),
            "page_faults": found.get("page_faults"),
            "instructions_per_cycle": _ratio(found.get("instructions"), found.get("cycles")),
            "cache_hit_ratio": None if missed is None else 1 - missed,
            **_float_figures(found, self.floats, flops),
            "memory_read_bytes": read,
            "memory_written_bytes": written,
            "memory_bytes_per_s": rate,
            "memory_bandwidth_share": _ratio(rate, bytes_per_s),
            "least_running_share": self.least_running_share if self.values else None,
            "notes": [] if _FLOPS in self.absent else list(self.notes),
            "absent": dict(self.absent),
        }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _float_figures(found: Mapping[str, float], events: Sequence[FloatEvent], theoretical: float | None) -> Counters:
    """The measured operations, and the width of their instructions."""
    seen = [(event, found[event.event.name]) for event in events if event.event.name in found]
    measured = sum(event.flops * count for event, count in seen) if seen else None
    # If an event counts only instructions, their number is used as the work.
    wide = [(event.width_bits, (event.flops or 1) * count) for event, count in seen if event.width_bits is not None]
    total = sum(amount for _, amount in wide)
    by_width: dict[str, float] = {}
    for bits, amount in wide:
        label = str(bits) if bits else "scalar"
        by_width[label] = by_width.get(label, 0.0) + (amount / total if total else 0.0)
    return {
        "measured_flops": measured,
        "theoretical_flops": theoretical,
        "measured_over_theoretical": _ratio(measured, theoretical),
        "vector_width_shares": {**by_width} or None,
        "vector_bits_mean": sum(bits * amount for bits, amount in wide) / total if total else None,
    }


@contextmanager
def counting(source: Kernel | Absent | None = None) -> Iterator[Counted]:
    """Count while the block runs: this process with all its threads; memory traffic is the whole machine's."""
    counted = Counted()
    machine = kernel() if source is None else source
    processor = this_processor()
    floats, memory = float_events(processor), memory_events()
    if isinstance(floats, Absent):
        counted.absent[_FLOPS] = floats.reason
    else:
        counted.floats, counted.notes = floats, uncounted_work(processor)
    if isinstance(memory, Absent):
        counted.absent[_MEMORY] = memory.reason
    events = [*GENERAL, *(found.event for found in counted.floats), *([] if isinstance(memory, Absent) else memory)]
    faults = page_faults()
    if isinstance(machine, Absent):
        counted.absent |= dict.fromkeys((_figure(event.name) for event in events), machine.reason)
        yield counted
        _count_faults(faults, counted)
        return
    with ExitStack() as stack:
        counters = _open(machine, events, counted, stack)
        for _, counter in counters:
            machine.start(counter)
        begin = perf_counter()
        try:
            yield counted
        finally:
            counted.seconds = perf_counter() - begin
            for _, counter in counters:
                machine.stop(counter)
            tally([(event, machine.read(counter)) for event, counter in counters], counted)
            _count_faults(faults, counted)


def _count_faults(before: tuple[float, float] | Absent, counted: Counted) -> None:
    """The kernel's account of the process, where its counters are closed to it."""
    after = page_faults()
    if "page_faults" in counted.absent and not isinstance(before, Absent) and not isinstance(after, Absent):
        del counted.absent["page_faults"]
        counted.values["page_faults"] = sum(after) - sum(before)


def _figure(name: str) -> str:
    """The figure that is missing without this event."""
    if name.startswith("float_"):
        return _FLOPS
    return _MEMORY if name.startswith("memory_") else name


def _open(machine: Kernel, events: Sequence[Event], counted: Counted, stack: ExitStack) -> list[tuple[Event, int]]:
    """A counter for every event and thread. An event that is refused for one thread is dropped for all: a sum over some
    of the threads would look like the total."""
    opened: list[tuple[Event, int]] = []
    threads = machine.threads()
    if sys.platform == "win32":
        room = 0
    else:
        import resource

        room = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES - len(os.listdir("/dev/fd"))
    for event in events:
        wanted = threads if event.machine_cpu is None else threads[:1]
        if len(opened) + len(wanted) > room:
            counted.absent[_figure(event.name)] = "too many threads for the limit of open files: raise it (ulimit -n)"
            continue
        for thread in wanted:
            counter = machine.open(event, thread)
            if isinstance(counter, Absent):
                counted.absent[_figure(event.name)] = counter.reason
                break
            if counter is not None:
                stack.callback(machine.close, counter)
                opened.append((event, counter))
    return [(event, counter) for event, counter in opened if _figure(event.name) not in counted.absent]


def tally(readings: Sequence[tuple[Event, Count]], counted: Counted) -> None:
    """Add up the readings by event. If a counter was never scheduled, its event is unknown."""
    for event, count in readings:
        value = count.scaled()
        if value is None:
            counted.absent[_figure(event.name)] = "the processor's counters were in use: this one was never scheduled"
            continue
        counted.values[event.name] = counted.values.get(event.name, 0.0) + value * event.scale
        counted.least_running_share = min(counted.least_running_share, count.running_share)
    counted.values = {name: value for name, value in counted.values.items() if _figure(name) not in counted.absent}


def list_counters() -> list[Instrument]:
    """Every counter, tried once: available, or why not."""
    with counting() as counted:
        pass
    names = dict.fromkeys([*(event.name for event in GENERAL), _FLOPS, _MEMORY])
    return [
        {"name": name, "available": name not in counted.absent, "reason": counted.absent.get(name)} for name in names
    ]
