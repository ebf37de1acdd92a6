"""`torchgauge compare A B [C …]`."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchgauge.cli.output import (
    check_outputs,
    print_failures,
    print_measuring_failures,
    print_written,
    report_options,
    show_progress,
)
from torchgauge.cli.target_options import (
    add_measuring_options,
    add_prediction_options,
    add_table_options,
    add_target_options,
    files_to_isolate,
    limit_arguments,
    measuring_arguments,
    target_arguments,
)
from torchgauge.cli.weights import add_depth_options, depth_arguments
from torchgauge.errors import UsageError
from torchgauge.isolation import stop_clock
from torchgauge.progress import stage
from torchgauge.report.registry import COMPARISON

if TYPE_CHECKING:
    from torchgauge.analysis import Comparison
    from torchgauge.report import Options

SUMMARY = "models or saved runs side by side: structure, parameters, MACs, memory, time, energy, weights"
DESCRIPTION = """\
Compare models, files or saved runs (.json) with the first of them. The options
apply to every target that is not a saved run.
"""
RESULT = COMPARISON


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", metavar="TARGET", nargs="+", help="a target as in analyze, or a saved run (.json)")
    add_target_options(parser)
    add_measuring_options(parser)
    add_prediction_options(parser)
    add_depth_options(parser, "on for files and folders up to 4 GiB")
    add_table_options(parser)


def isolated_paths(args: argparse.Namespace) -> list[str]:
    is_run = args.inference or args.profile or args.sweep
    return [] if is_run else files_to_isolate(args.targets, args)


def reader_needs(args: argparse.Namespace) -> dict[str, bool]:
    from torchgauge.analysis.comparison import is_saved_run

    is_analyzed = not all(is_saved_run(target) for target in args.targets)
    return {"torch": is_analyzed, "weights": is_analyzed and args.weights is not False}


def run(args: argparse.Namespace) -> int:
    from torchgauge.report.comparison.sections import check_columns

    if len(args.targets) < 2:
        raise UsageError("a comparison needs two targets or more: torchgauge compare A B")
    check_outputs(args.outputs, COMPARISON)
    options = report_options(args)
    check_columns(options)
    from torchgauge.analysis.comparison import compare, is_saved_run

    with redirect_stdout(sys.stderr):
        asked: dict[str, Any] = {"progress": show_progress(args, sys.stderr)}
        # Saved runs are compared without torch, which the others' options need.
        if not all(is_saved_run(target) for target in args.targets):
            asked |= target_arguments(args, *args.targets) | measuring_arguments(args) | depth_arguments(args)
            asked |= limit_arguments(args) | {"on": args.on, "advice": False}
        found = compare(*args.targets, **asked)
    deliver(found, args, options)
    return max(max(print_failures(one), print_measuring_failures(one)) for one in found.analyses)


def deliver(found: Comparison, args: argparse.Namespace, options: Options) -> None:
    from dataclasses import replace

    from torchgauge.report.comparison.sections import comparison_sections
    from torchgauge.report.formats.text import sections_lines
    from torchgauge.report.layout import PLAIN_WIDTH, write_lines

    shown = show_progress(args, sys.stderr)
    for path in args.outputs:
        with stage(f"writing {Path(path).name}", shown=shown):
            found.save(path, replace(options, width=PLAIN_WIDTH))
        print_written(Path(path), quiet=args.quiet)
    stop_clock()
    if args.json:
        sys.stdout.write(found.render("json"))
    elif not args.quiet:
        with stage("writing the report", shown=shown):
            lines = sections_lines(comparison_sections(found.data, options), options.width)
        write_lines(lines, sys.stdout)
