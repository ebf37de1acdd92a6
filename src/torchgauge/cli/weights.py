"""`torchgauge weights PATH`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torchgauge.cli.output import show_progress, tell_written

if TYPE_CHECKING:
    from torchgauge.analysis import WeightScan

SUMMARY = "the tensors of a checkpoint file or folder, from its headers"
DESCRIPTION = """\
List the tensors of a checkpoint: names, shapes, types, bytes and where they lie. Nothing in the file is executed.

PATH is a state dict or training checkpoint (torch.save), safetensors, TorchScript or exported program, known by its
content, or a folder of sharded or distributed weights.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH")


def run(args: argparse.Namespace) -> int:
    from torchgauge.report.saving import weight_format

    for output in args.outputs:
        weight_format(output)
    from torchgauge.analysis import scan_weights

    deliver(scan_weights(args.path, progress=show_progress(args, sys.stderr)), args)
    return 0


def deliver(scan: WeightScan, args: argparse.Namespace) -> None:
    from torchgauge.report import Options, render
    from torchgauge.report.terminal import terminal_width, write_lines
    from torchgauge.report.weights_text import weight_lines

    for output in args.outputs:
        scan.save(output)
        tell_written(Path(output), quiet=args.quiet)
    if args.json:
        sys.stdout.write(render(scan, "json"))
    elif not args.quiet:
        write_lines(weight_lines(scan, Options(width=terminal_width())), sys.stdout)
