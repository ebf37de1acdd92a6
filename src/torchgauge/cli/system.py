"""`torchgauge system`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from torchgauge.cli.output import check_outputs, deliver, show_progress
from torchgauge.progress import import_torch, stage
from torchgauge.report.registry import SYSTEM, find_format

if TYPE_CHECKING:
    from torchgauge.hardware import System
    from torchgauge.measure.absence import Instrument
    from torchgauge.measure.calibrate import Calibrated, DevicePeaks
    from torchgauge.report.layout import Line

SUMMARY = "what can be measured here: devices, peak rates, sensors, counters, energy meters"
RESULT = SYSTEM
DESCRIPTION = "Show the devices of this machine and what can be measured on it."
EXAMPLES = (
    "torchgauge system",
    "torchgauge system --calibrate",
    "torchgauge system --json -o machine.json",
)


class Machine(TypedDict, total=False):
    """Devices, meters, sensors and counters of this machine; those that it lacks are listed with the reason."""

    peaks: list[DevicePeaks]
    sensors: list[Instrument]
    counters: list[Instrument]
    meters: list[Instrument]
    calibration: list[Calibrated]
    isolation: list[Instrument]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="measure and save the matmul rates, the copy bandwidth and, for forecast, the kernels of each device",
    )
    parser.add_argument(
        "--kernel-seconds",
        type=float,
        default=100.0,
        metavar="S",
        help="time for measuring kernels, for all devices together (default: 100)",
    )


def run(args: argparse.Namespace) -> int:
    check_outputs(args.outputs, SYSTEM)
    import_torch(shown=show_progress(args))
    from torchgauge.energy.meter import list_meters
    from torchgauge.hardware import collect_system
    from torchgauge.isolation import barriers
    from torchgauge.measure.calibrate import peaks
    from torchgauge.measure.counters import list_counters
    from torchgauge.measure.sampler import list_quantities
    from torchgauge.report.layout import terminal_width
    from torchgauge.report.saving import write_whole

    system = collect_system()
    calibrated = calibrate_all(system, args) if args.calibrate else []
    places = ["cpu", *(f"{device.kind}:{device.index}" for device in system.devices)]
    # Without a CUDA device, its meters are listed with the reason.
    places += [] if any(device.kind == "cuda" for device in system.devices) else ["cuda"]
    found: Machine = {
        "peaks": peaks(system),
        "sensors": list_quantities(sum(device.kind == "cuda" for device in system.devices)),
        "counters": list_counters(),
        "meters": list_meters(places),
        "calibration": calibrated,
        "isolation": [
            {"name": one.name, "prevents": one.prevents, "reason": one.reason, "available": one.is_active}
            for one in barriers()
        ],
    }
    deliver(
        args,
        save=lambda path: write_whole(Path(path), FORMS[find_format(path, SYSTEM).name](system, found)),
        json=lambda: [system_json(system, found)],
        lines=lambda: system_lines(system, found, terminal_width()),
    )
    return 0


def calibrate_all(system: System, args: argparse.Namespace) -> list[Calibrated]:
    from torchgauge.measure.calibrate import calibrate_device
    from torchgauge.predict.calibration import LAUNCH_S, calibrate_kernels
    from torchgauge.predict.kernel_tables import Rates
    from torchgauge.units import format_things

    env = system.environment
    devices = [("cpu", env.cpu, f"with torch {env.torch}, {format_things(env.threads, 'thread')}")]
    devices += [(f"cuda:{d.index}", d.name, f"with torch {env.torch}") for d in system.devices if d.kind == "cuda"]
    with stage("Calibrating", shown=show_progress(args)) as report_progress:
        found = [calibrate_device(device, name, how, report_progress) for device, name, how in devices]
        for one in found:
            rates = Rates(one.flops_per_s or {"float32": 1e11}, one.bytes_per_s or 1e10, LAUNCH_S)
            seconds = args.kernel_seconds / len(found)
            calibrate_kernels(one.device, one.name, rates, one.measured, seconds=seconds, progress=report_progress)
        return found


def system_json(system: System, found: Machine) -> str:
    from torchgauge import __version__
    from torchgauge.facts import SCHEMA_VERSION

    tool = {"name": "torchgauge", "version": __version__}
    rows = [asdict(row) for row in found["peaks"]]
    for peaks in (row[kind] for row in rows for kind in ("published", "measured") if row[kind]):
        del peaks["pace"]  # of single ops: it serves the advice, and is not a peak
    lists = {**found, "peaks": rows, "calibration": [asdict(one) for one in found["calibration"]]}
    document = {"schema_version": SCHEMA_VERSION, "tool": tool} | asdict(system) | lists
    return json.dumps(document, indent=1) + "\n"


def system_text(system: System, found: Machine) -> str:
    from torchgauge.report.layout import PLAIN_WIDTH, plain

    return plain(system_lines(system, found, PLAIN_WIDTH))


def system_lines(system: System, found: Machine, width: int) -> list[Line]:
    from torchgauge.report.layout import Span, wrap
    from torchgauge.units import format_bytes, format_exact, format_things, visible

    env = system.environment
    physical, logical = format_exact(system.physical_cores), format_exact(system.logical_cores)
    backends = ", ".join(
        f"{name} {value}" if isinstance(value, str) else f"{name} {'yes' if value else 'no'}"
        for name, value in system.backends.items()
    )
    facts = [
        ("System", env.platform),
        ("Python", env.python),
        ("CPU", env.cpu),
        ("Cores", f"{physical} physical, {logical} logical, {format_exact(env.cpu_cores)} usable"),
        ("Memory", f"{format_bytes(env.memory_bytes)}, {format_bytes(system.available_memory_bytes)} available"),
        ("torch", f"{env.torch}, {format_things(env.threads, 'thread')}"),
        ("Backends", backends),
    ]
    for device in system.devices:
        text = f"{device.kind}:{device.index} {device.name}, {format_bytes(device.memory_bytes)}"
        if device.compute_capability:
            text += f", compute capability {device.compute_capability}, {device.multiprocessors} multiprocessors"
        facts.append(("Device", text))
    if not system.devices:
        facts.append(("Devices", "none except the CPU"))
    facts += [("Peaks", peaks_text(row)) for row in found.get("peaks", ())]
    for row in found.get("calibration", ()):
        facts += [("Missing", f"{row.device} {part}: {reason}") for part, reason in row.absent.items()]
        facts += [("Note", note) for note in row.notes]
    lines = [line for name, value in facts for line in wrap(visible(value), width, lead=(Span(f"{name:<10}"),))]
    lists = {
        "Sensors": found.get("sensors", ()),
        "Counters": found.get("counters", ()),
        "Meters": found.get("meters", ()),
        "Isolation": found.get("isolation", ()),
    }
    for title, rows in lists.items():
        lines += [(), (Span(title, "heading"),)] if rows else []
        lines += [line for row in rows for line in offer_lines(row, width)]
    return lines


FORMS = {"json": system_json, "text": system_text}


def peaks_text(row: DevicePeaks) -> str:
    from torchgauge.units import format_count

    known = []
    for peaks in (row.published, row.measured):
        if peaks:
            rates = [
                f"{dtype} {format_count(rate)}{'OP' if dtype == 'int8' else 'FLOP'}/s"
                for dtype, rate in peaks.flops_per_s.items()
            ]
            rates += [f"memory {format_count(peaks.bytes_per_s)}B/s"] if peaks.bytes_per_s else []
            known.append(f"{', '.join(rates)} ({peaks.source})")
    return f"{row.device}: {'; '.join(known) or 'unknown; torchgauge system --calibrate measures them'}"


def offer_lines(row: Instrument, width: int) -> list[Line]:
    """A sensor, a counter or a barrier: its resolution, or why it is missing."""
    from torchgauge.report.layout import Span, wrap
    from torchgauge.units import format_bytes, format_count, format_seconds, format_value, visible

    name = f"{row['name']} ({row['device']})" if row.get("device") else row["name"]
    lead = (Span(f"  {visible(name):<34}"),)
    if not row["available"]:
        return wrap(visible(f"absent: {row['reason']}"), width, lead=lead, style="dim")
    parts = [f"prevents {row['prevents']}"] if row.get("prevents") else []
    if row.get("update_period_s"):
        parts.append(f"every {format_seconds(row['update_period_s'])}")
    if row.get("resolution"):
        value, unit = row["resolution"], row["resolution_unit"]
        step = f"{format_value(value)} {unit}".rstrip()
        if unit in ("s", "B"):
            step = format_seconds(value) if unit == "s" else format_bytes(value)
        elif unit == "Hz":
            step = f"{format_count(value)}Hz"
        parts.append(f"in steps of {step}")
    if row.get("source"):
        parts.append(f"from {row['source']}")
    return wrap(visible(", ".join(parts) or "available"), width, lead=lead)
