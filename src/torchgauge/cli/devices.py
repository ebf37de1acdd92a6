"""`torchgauge devices`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from torchgauge.cli.output import check_outputs, deliver
from torchgauge.report.registry import SYSTEM, find_format

if TYPE_CHECKING:
    from torchgauge.analysis.device_list import KnownDevice
    from torchgauge.report.layout import Line

SUMMARY = "the devices that fit, forecast and llm know, and what predictions for them rest on"
RESULT = SYSTEM
DESCRIPTION = """\
List the devices for --on: memory, peak rates, what predictions rest on and
their error. Names are given as people write them: "RTX 4090", "4090",
"A100-80GB", "M4 Max 64GB". A size (24GiB) and "this" work too.
"""
EXAMPLES = (
    "torchgauge devices",
    "torchgauge devices --json",
    "torchgauge devices -o devices.json",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(args: argparse.Namespace) -> int:
    check_outputs(args.outputs, SYSTEM)
    from torchgauge.analysis import devices
    from torchgauge.report.layout import PLAIN_WIDTH, plain, terminal_width
    from torchgauge.report.saving import write_whole

    found = devices()
    forms = {"json": lambda: devices_json(found), "text": lambda: plain(device_lines(found, PLAIN_WIDTH))}
    deliver(
        args,
        save=lambda path: write_whole(Path(path), forms[find_format(path, SYSTEM).name]()),
        json=lambda: [devices_json(found)],
        lines=lambda: device_lines(found, terminal_width()),
    )
    return 0


def devices_json(found: list[KnownDevice]) -> str:
    from torchgauge import __version__
    from torchgauge.facts import SCHEMA_VERSION

    tool = {"name": "torchgauge", "version": __version__}
    document = {"schema_version": SCHEMA_VERSION, "tool": tool, "devices": [one.to_dict() for one in found]}
    return json.dumps(document, indent=1) + "\n"


def device_lines(found: list[KnownDevice], width: int) -> list[Line]:
    from torchgauge.report.formats.text import sections_lines
    from torchgauge.report.model import Cell, Section, figures, notes, table, texts
    from torchgauge.units import format_bytes, format_percent

    def tera(device: KnownDevice, *dtypes: str) -> str:
        rate = next((device.flops_per_s[name] for name in dtypes if name in device.flops_per_s), None)
        return "" if rate is None else f"{rate / 1e12:.4g}"

    rows = [
        (
            Cell(one.name),
            Cell(format_bytes(one.memory_bytes)),
            Cell(tera(one, "bfloat16", "float16")),
            Cell(tera(one, "float32")),
            Cell(f"{one.bytes_per_s / 1e9:,.0f}"),
            Cell(one.memory_basis),
            Cell(f"±{format_percent(one.memory_error)}"),
            Cell(one.time_basis or "memory only"),
            Cell("" if one.time_error is None else f"{1 + one.time_error:.2f}"),
        )
        for one in found
    ]
    headings = (
        *texts("Device"),
        *figures("Memory", "16-bit TFLOP/s", "float32", "GB/s"),
        *texts("Memory from"),
        *figures("Error"),
        *texts("Time from"),
        *figures("Factor"),
    )
    meaning = (
        "Memory is predicted from kernels that were measured on such a chip, from those of its architecture without a "
        "comparison, or for other makers from an A100's. Time is predicted from kernels that were measured on the "
        "device, published by NVIDIA, carried over from a similar device, or from data sheets. 90 % of predictions "
        "are expected within the error and the factor.",
    )
    return sections_lines([Section("Devices", (table(headings, rows), *notes(meaning, is_remark=True)))], width)
