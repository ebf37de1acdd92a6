"""`torchgauge analyze TARGET`."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from torchgauge.cli.output import (
    INTERRUPTED,
    INTERRUPTED_STATUS,
    check_outputs,
    deliver_view,
    print_failures,
    print_measuring_failures,
    report_options,
)
from torchgauge.cli.target_options import (
    Reader,
    add_measuring_options,
    add_prediction_options,
    add_table_options,
    add_target_options,
    files_to_isolate,
    number,
    target_arguments,
)
from torchgauge.cli.weights import add_depth_options
from torchgauge.errors import TorchgaugeError, UsageError
from torchgauge.progress import say
from torchgauge.report.registry import ANALYSIS, find_format

if TYPE_CHECKING:
    from torchgauge.analysis import Analysis

SUMMARY = "parameters, MACs, FLOPs and memory, per module and op; time and energy on request"
DESCRIPTION = """\
Count parameters, MACs, FLOPs and memory of a model without computing anything.
With --inference, also run the model and measure it.

TARGET is one of
  a file                       TorchScript, torch.export, state dict, training
                               checkpoint, safetensors, GGUF (by content)
  a folder                     Hugging Face, sharded or distributed weights
  path/to/file.py:Name         a class, a factory or an instance
  package.module:Name          the same, of a package that can be imported
  timm:NAME, torchvision:NAME  a model of these packages, without its weights
  hf:PATH_OR_CLASS             a transformers configuration, model type or class
"""
EXAMPLES = (
    "torchgauge torchvision:resnet50 --batch 8 --on h200,a100",
    "torchgauge model.py:Net --input 1x3x224x224 --inference --profile",
    "torchgauge checkpoint.pt -o report.html -o report.json",
)
RESULT = ANALYSIS
# The same as in `torchgauge.facts`, which --help does not load: that would double its time.
EXECUTIONS = ("eager", "compiled")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="what to analyse, in one of the forms above")
    add_target_options(parser)
    parser.add_argument_group("compiling").add_argument(
        "--execution",
        choices=EXECUTIONS,
        help="compiled: show the graphs, breaks and kernels of torch.compile (default: eager)",
    )
    add_measuring_options(parser)
    add_carbon_options(parser)
    add_prediction_options(parser)
    add_depth_options(parser, "on for files and folders up to 4 GiB")
    add_advice_options(parser)
    add_table_options(parser).add_argument(
        "--ops", action="store_true", help="also the most expensive modules and ops, distributions and coverage"
    )


def isolated_reader(args: argparse.Namespace) -> Reader:
    """A model that is run for real is not isolated."""
    is_run = args.inference or args.profile or args.sweep or args.verify or args.execution == "compiled"
    paths = [] if is_run else files_to_isolate([args.target], args)
    if not paths:
        return Reader([])
    from torchgauge.analysis.pipeline import may_be_weights_alone

    return Reader(paths, torch=not may_be_weights_alone(paths[0], vars(args)), weights=args.weights is not False)


def add_advice_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("advice", "what to change in the model, where there is evidence")
    group.add_argument("--no-advice", dest="advice", action="store_false", help="omit the advice")
    group.add_argument("--all-advice", action="store_true", help="show all advice, even if the gain is small")
    group.add_argument(
        "--silence", action="append", default=[], metavar="RULE", help="repeatable; omit the advice of this rule"
    )
    group.add_argument(
        "--verify",
        action="store_true",
        help="measure each gain on a copy of the model (TORCHGAUGE_VERIFY_BUDGET: seconds for each; default: 4)",
    )


def add_carbon_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("carbon", "CO2e of the measured energy (--profile), otherwise of the estimate")
    group.add_argument(
        "--carbon", metavar="CC", help="country of the grid: DE, FR, US, …, EU, WORLD (the default with --profile)"
    )
    group.add_argument(
        "--carbon-intensity", type=number, metavar="G", help="carbon intensity of the grid, grams of CO2e per kWh"
    )
    group.add_argument(
        "--pue", type=number, metavar="P", help="power usage effectiveness (PUE) of the data centre (default: 1)"
    )
    group.add_argument(
        "--carbon-rate", type=number, metavar="R", help="samples per second, to compute grams per year (default: 1)"
    )


def run(args: argparse.Namespace) -> int:
    from torchgauge.analysis import analyze
    from torchgauge.analysis.advice import with_known_device

    check_outputs(args.outputs)
    options = report_options(args)
    is_profiled = (args.inference or args.profile or args.sweep) and args.profile_level != "latency"
    if not is_profiled and any(find_format(path).name == "trace" for path in args.outputs):
        raise UsageError("a .trace.json needs a profiled run: add --inference, without --profile-level latency")
    # The model's code may print: keep that out of the report and its JSON.
    with redirect_stdout(sys.stderr):
        found = with_known_device(analyze(**target_arguments(args, args.target)))
    deliver_view(found, args, options)
    if args.verify and not (found.advice or found.options or found.plan or args.quiet):
        say("torchgauge: nothing to verify: there is no advice for this model")
    return max(print_failures(found), print_measuring_failures(found), print_verifying_failure(found))


def print_verifying_failure(found: Analysis) -> int:
    """Print why the verification as a whole failed; the exit status."""
    failure = found.plan["reason"] if found.plan else None
    if failure is None:
        return 0
    if failure == INTERRUPTED:
        say("torchgauge: interrupted: the report has what was verified so far")
        return INTERRUPTED_STATUS
    say(f"torchgauge: error: verifying failed: {failure}")
    return TorchgaugeError.exit_status
