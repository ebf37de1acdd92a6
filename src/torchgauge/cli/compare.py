"""`torchgauge compare A B [C …]`."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

from torchgauge.cli.output import (
    check_outputs,
    deliver,
    print_failures,
    print_findings,
    print_measuring_failures,
    report_options,
    show_progress,
)
from torchgauge.cli.target_options import (
    Reader,
    add_measuring_options,
    add_prediction_options,
    add_table_options,
    add_target_options,
    files_to_isolate,
    target_arguments,
)
from torchgauge.cli.weights import add_depth_options
from torchgauge.errors import UsageError
from torchgauge.report.registry import COMPARISON

SUMMARY = "models or saved runs side by side: structure, figures, weights"
DESCRIPTION = """\
Compare models, files or saved runs (.json) with the first of them. The options
apply to every target that is not a saved run.
"""
EXAMPLES = (
    "torchgauge compare timm:resnet50 timm:resnet50d",
    "torchgauge compare before.json after.json -o changes.html",
    "torchgauge compare model.py:Small model.py:Large --input 1x3x224x224",
)
RESULT = COMPARISON


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", metavar="TARGET", nargs="+", help="a target as in analyze, or a saved run (.json)")
    add_target_options(parser)
    add_measuring_options(parser)
    add_prediction_options(parser)
    add_depth_options(parser, "on for files and folders up to 4 GiB")
    add_table_options(parser)


def isolated_reader(args: argparse.Namespace) -> Reader:
    from torchgauge.analysis.comparison import is_saved_run

    is_run = args.inference or args.profile or args.sweep
    is_analyzed = not all(is_saved_run(target) for target in args.targets)
    paths = [] if is_run else files_to_isolate(args.targets, args)
    return Reader(paths, torch=is_analyzed, weights=is_analyzed and args.weights is not False)


def run(args: argparse.Namespace) -> int:
    from torchgauge.analysis.comparison import compare, is_saved_run
    from torchgauge.report.comparison.sections import check_columns, comparison_sections
    from torchgauge.report.formats.text import sections_lines
    from torchgauge.report.layout import PLAIN_WIDTH

    if len(args.targets) < 2:
        raise UsageError("a comparison needs two targets or more: torchgauge compare A B")
    check_outputs(args.outputs, COMPARISON)
    options = report_options(args)
    check_columns(options)
    with redirect_stdout(sys.stderr):
        asked: dict[str, Any] = {"progress": show_progress(args)}
        # Saved runs are compared without torch, which the others' options need.
        if not all(is_saved_run(target) for target in args.targets):
            asked |= target_arguments(args, *args.targets) | {"advice": False}
        found = compare(*args.targets, **asked)
    print_findings(*found.analyses)
    deliver(
        args,
        save=lambda path: found.save(path, replace(options, width=PLAIN_WIDTH)),
        json=lambda: [found.render("json")],
        lines=lambda: sections_lines(comparison_sections(found.data, options), options.width),
    )
    return max(max(print_failures(one), print_measuring_failures(one)) for one in found.analyses)
