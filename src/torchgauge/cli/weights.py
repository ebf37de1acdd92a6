"""`torchgauge weights PATH`."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from torchgauge.cli.output import check_outputs, deliver, print_failures, print_findings
from torchgauge.cli.target_options import Reader, files_to_isolate, named_arguments, positive
from torchgauge.errors import UsageError
from torchgauge.progress import say
from torchgauge.report.registry import SCAN, find_format

if TYPE_CHECKING:
    from torchgauge.facts.figures import Members

SUMMARY = "statistics of every tensor of a checkpoint, or what changed against another one"
DESCRIPTION = """\
Read every tensor of a checkpoint once: distribution, norms, entropy, and what
pruning and quantization would cost. Nothing in the file is executed, and a file
may be larger than memory.

PATH is a state dict or training checkpoint (torch.save), safetensors,
TorchScript or an exported program, detected by content, or a folder of sharded
or distributed weights.
"""
EXAMPLES = (
    "torchgauge weights model.safetensors",
    "torchgauge weights new.pt --against old.pt -o changes.csv",
    "torchgauge weights folder/ --no-weights --json",
)
RESULT = SCAN


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a checkpoint file or folder")
    parser.add_argument(
        "--as", dest="code", metavar="TARGET", help="the code for these weights: file.py:Name, timm:NAME, …"
    )
    add_depth_options(parser, "on; with --against off")
    work = parser.add_argument_group("work")
    work.add_argument(
        "--threads", type=positive, metavar="N", help="threads for reading and counting (default: all cores)"
    )
    work.add_argument("--dask", metavar="ADDRESS|local:N", help="use a Dask cluster, or N processes on this machine")
    work.add_argument("--resume", action="store_true", help="resume an interrupted scan")
    parser.add_argument("--against", metavar="B", help="compare with the checkpoint B; the largest change comes first")


def isolated_reader(args: argparse.Namespace) -> Reader:
    """A Dask cluster reads with the rights of its workers."""
    from torchgauge.analysis.weight_scan import scan_journal

    paths = [] if args.dask else files_to_isolate([args.path, args.against], args, takes_code=False)
    journal = scan_journal(**named_arguments(scan_journal, args))
    return Reader(paths, torch=args.code is not None, weights=args.weights is not False, journal=journal)


def add_depth_options(parser: argparse.ArgumentParser, default: str) -> None:
    group = parser.add_argument_group("values of the weights")
    group.add_argument("--weights", action=argparse.BooleanOptionalAction, help=f"read the values (default: {default})")
    group.add_argument(
        "--deep",
        action=argparse.BooleanOptionalAction,
        help="spectral norms, quantization by channel and group, structured pruning (default: up to 2 GiB)",
    )
    group.add_argument("--spectrum", action="store_true", help="compute all singular values: rank, low-rank potential")


def run(args: argparse.Namespace) -> int:
    formats = {output: find_format(output, SCAN).name for output in args.outputs}
    if args.against is None and "against.csv" in formats.values():
        raise UsageError("nothing to compare with: name the other checkpoint with --against B")
    check_outputs(args.outputs, SCAN)
    reads_values = args.against is None if args.weights is None else args.weights
    streamed = [output for output, name in formats.items() if name == "weights.jsonl" and reads_values]
    from torchgauge.analysis.weight_scan import remove_journal, resumable_scan, scan_journal
    from torchgauge.facts.weights import open_scheduler
    from torchgauge.report import Options, render_pieces
    from torchgauge.report.formats.text import weight_lines
    from torchgauge.report.layout import terminal_width
    from torchgauge.report.saving import RowStream

    if remark := open_scheduler(args.dask):
        say(f"torchgauge: warning: {remark}")
    with ExitStack() as stack:
        # JSON lines are written as the rows come: a long scan leaves nothing to wait for.
        streams = [stack.enter_context(RowStream(output)) for output in streamed]

        def write(row: Members) -> None:
            for stream in streams:
                stream.write(row)

        scan = resumable_scan(**named_arguments(resumable_scan, args), on_row=write if streams else None)
    print_findings(scan)
    deliver(
        args,
        save=scan.save,
        json=lambda: (piece.decode() for piece in render_pieces(scan, "json")),
        lines=lambda: weight_lines(scan, Options(width=terminal_width())),
        written=streamed,
    )
    sys.stdout.flush()
    remove_journal(scan, **named_arguments(scan_journal, args))
    return print_failures(scan)
