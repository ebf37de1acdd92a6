"""`torchgauge system`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchgauge.cli.output import write_file
from torchgauge.errors import UsageError

if TYPE_CHECKING:
    from torchgauge.environment import Device, System

SUMMARY = "what this machine offers: processor, memory, torch and its backends, devices"
DESCRIPTION = "Show what this machine offers to torch."


def configure(parser: argparse.ArgumentParser) -> None:
    """No options of its own."""


def run(args: argparse.Namespace) -> int:
    from torchgauge.environment import collect_system

    forms = {".json": system_json, ".txt": system_text}
    for path in args.outputs:
        if Path(path).suffix not in forms:
            raise UsageError(f"'{path}': the name must end in one of: {', '.join(forms)}")
    system = collect_system()
    for path in args.outputs:
        write_file(Path(path), forms[Path(path).suffix](system), quiet=args.quiet)
    if args.json:
        sys.stdout.write(system_json(system))
    elif not args.quiet:
        sys.stdout.write(system_text(system))
    return 0


def system_json(system: System) -> str:
    return json.dumps(system_document(system), indent=1) + "\n"


def system_document(system: System) -> dict[str, Any]:
    from torchgauge import __version__
    from torchgauge.records import SCHEMA_VERSION

    return {"schema_version": SCHEMA_VERSION, "tool": {"name": "torchgauge", "version": __version__}} | asdict(system)


def system_text(system: System) -> str:
    from torchgauge.report.escape import visible

    facts = [*_machine(system), *_torch(system), *(("Device", device_text(device)) for device in system.devices)]
    if not system.devices:
        facts.append(("Devices", "none besides the CPU"))
    return "".join(f"{name:<10}{visible(value)}\n" for name, value in facts)


def _machine(system: System) -> list[tuple[str, str]]:
    from torchgauge.units import format_bytes, format_exact

    env = system.environment
    physical, logical = format_exact(system.physical_cores), format_exact(system.logical_cores)
    return [
        ("System", env.platform),
        ("Python", env.python),
        ("CPU", env.cpu),
        ("Cores", f"{physical} physical, {logical} logical, {format_exact(env.cpu_cores)} usable"),
        ("Memory", f"{format_bytes(env.memory_bytes)}, {format_bytes(system.available_memory_bytes)} available"),
    ]


def _torch(system: System) -> list[tuple[str, str]]:
    backends = ", ".join(
        f"{name} {value}" if isinstance(value, str) else f"{name} {'yes' if value else 'no'}"
        for name, value in system.backends.items()
    )
    return [("torch", f"{system.environment.torch}, {system.environment.threads} threads"), ("Backends", backends)]


def device_text(device: Device) -> str:
    from torchgauge.units import format_bytes

    text = f"{device.kind}:{device.index} {device.name}, {format_bytes(device.memory_bytes)}"
    if device.compute_capability:
        text += f", compute capability {device.compute_capability}, {device.multiprocessors} multiprocessors"
    return text
