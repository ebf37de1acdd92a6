"""`torchgauge analyze TARGET`."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from torchgauge.cli.output import deliver, report_options, show_progress, tell_failures, tell_measuring_failures
from torchgauge.cli.weights import add_depth_options, depth_arguments
from torchgauge.errors import UsageError

if TYPE_CHECKING:
    from torchgauge.analysis import Analysis

SUMMARY = "parameters, MACs, FLOPs, memory of a model, per module and per op; its measured time on request"
DESCRIPTION = """\
Analyse a model without doing its arithmetic; with --inference run it as well, and measure.

TARGET is one of
  a file                                       TorchScript, torch.export, state dict, training checkpoint, safetensors
  a folder                                     Hugging Face, sharded or distributed weights
  path/to/file.py:Name, package.module:Name    a class, a factory or an instance
  timm:NAME, torchvision:NAME                  a model of these packages, without its weights
  hf:PATH_OR_CLASS                             a transformers configuration, model type or class
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET")
    files = parser.add_argument_group("files")
    files.add_argument(
        "--as", dest="code", metavar="TARGET", help="the code of a bare state dict: file.py:Name, timm:NAME, …"
    )
    inputs = parser.add_argument_group("inputs", "inferred where the model says what it wants")
    inputs.add_argument(
        "--input",
        dest="inputs",
        action="append",
        default=[],
        metavar="[NAME=]DIMS[:DTYPE]",
        help="repeatable: 1x3x224x224, ids=1x128:int64",
    )
    inputs.add_argument("--batch", type=positive, metavar="N", help="batch size of inferred inputs")
    inputs.add_argument("--seq", type=positive, metavar="N", help="sequence length of inferred inputs")
    inputs.add_argument("--dtype", metavar="T", help="type of floating inputs: float32, bfloat16, …")
    run = parser.add_argument_group("run")
    run.add_argument(
        "--device", metavar="D", help="device the tensors pretend to be on, and runs are measured on (default: cpu)"
    )
    run.add_argument(
        "--mode", choices=("inference", "train"), default="inference", help="train: forward, backward, optimizer step"
    )
    add_measuring_options(parser)
    add_carbon_options(parser)
    add_depth_options(parser, "on for files and folders up to 4 GiB")
    add_advice_options(parser)
    table = parser.add_argument_group("report")
    table.add_argument("--depth", type=int, metavar="N", help="levels of the module tree (default: what fits a page)")
    table.add_argument("--columns", metavar="A,B", help="columns of the module tree, such as params,macs,calls")
    table.add_argument("--sort", metavar="KEY", help="order siblings by this column, the largest first")


def add_measuring_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measuring", "real runs; the values in files are read, their code is run")
    group.add_argument("--inference", action="store_true", help="measure time and memory, per module")
    group.add_argument(
        "--profile", action="store_true", help="and per op, with energy, system, counters, thread scaling"
    )
    group.add_argument(
        "--sweep",
        action="append",
        metavar="KEY=A,B,C",
        help="repeatable; measure over batch, seq, dtype or threads: batch=1,2,4,8",
    )
    group.add_argument("--threads", type=positive, metavar="N", help="torch's threads (TORCHGAUGE_THREADS)")
    group.add_argument(
        "--budget", type=float, metavar="S", help="seconds for the undisturbed runs (TORCHGAUGE_BUDGET; default: 10)"
    )
    group.add_argument(
        "--memory-fraction",
        type=float,
        metavar="F",
        help="of a CUDA device's memory that may be used, 0 to 1 (TORCHGAUGE_MEMORY_FRACTION)",
    )
    group.add_argument(
        "--profile-level",
        choices=("latency", "modules", "ops"),
        help="how far down time is told (TORCHGAUGE_PROFILE_LEVEL; default: modules, with --profile ops)",
    )


def add_advice_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("advice", "what to do about the model, where there is evidence for it")
    group.add_argument("--no-advice", dest="advice", action="store_false", help="leave it out")
    group.add_argument("--silence", action="append", default=[], metavar="RULE", help="repeatable; leave out this rule")


def add_carbon_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("carbon", "of the energy that --profile measures; without it of an estimate")
    group.add_argument("--carbon", metavar="CC", help="country of the grid: DE, FR, US, …, EU, WORLD")
    group.add_argument("--carbon-intensity", type=float, metavar="G", help="of the grid, grams of CO2e per kWh")
    group.add_argument(
        "--pue", type=float, metavar="P", help="the data centre's power usage effectiveness (default: 1)"
    )
    group.add_argument(
        "--carbon-rate", type=float, metavar="R", help="samples per second of the year's grams (default: 1)"
    )


def carbon_arguments(args: argparse.Namespace) -> dict[str, Any]:
    grid = {"carbon": args.carbon, "carbon_intensity": args.carbon_intensity}
    return grid | {"pue": args.pue, "carbon_rate": args.carbon_rate}


def measuring_arguments(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "inference": args.inference,
        "profile": args.profile,
        "sweep": args.sweep,
        "threads": args.threads,
        "budget_s": args.budget,
        "memory_fraction": args.memory_fraction,
        "profile_level": args.profile_level,
    }


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def run(args: argparse.Namespace) -> int:
    options = report_options(args)
    check_trace(args)
    # What the model's own code prints is no part of the report, nor of its JSON.
    with redirect_stdout(sys.stderr):
        found = analyze_target(args)
    deliver(found, args, options)
    return max(tell_failures(found), tell_measuring_failures(found))


def check_trace(args: argparse.Namespace) -> None:
    """Before the analysis, which may take long: a trace is of a profiled run."""
    is_profiled = args.inference or args.profile or args.sweep
    if any(path.endswith(".trace.json") for path in args.outputs) and (
        not is_profiled or args.profile_level == "latency"
    ):
        raise UsageError("a .trace.json is of a profiled run: give --inference, and no --profile-level latency")


def analyze_target(args: argparse.Namespace) -> Analysis:
    from torchgauge.analysis import analyze
    from torchgauge.source import parse_dtype, parse_input

    return analyze(
        args.target,
        specs=[parse_input(text) for text in args.inputs],
        batch=args.batch,
        seq=args.seq,
        dtype=parse_dtype(args.dtype) if args.dtype else None,
        device=args.device,
        mode=args.mode,
        **measuring_arguments(args),
        **carbon_arguments(args),
        **depth_arguments(args),
        advice=args.advice,
        silence=args.silence,
        code=args.code,
        allow_pickle=args.allow_pickle,
        progress=show_progress(args, sys.stderr),
    )
