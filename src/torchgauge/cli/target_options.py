"""Options shared by the commands that open targets: inputs, run, measuring, the module table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from torchgauge.cli.output import show_progress
from torchgauge.isolation import is_isolated
from torchgauge.progress import import_torch


def add_target_options(parser: argparse.ArgumentParser, *, batches: str | None = None, has_device: bool = True) -> None:
    """`batches`: the help of --batch for a command that takes several batch sizes and sequence lengths."""
    files = parser.add_argument_group("files")
    files.add_argument(
        "--as", dest="code", metavar="TARGET", help="the code for a bare state dict: file.py:Name, timm:NAME, …"
    )
    inputs = parser.add_argument_group("inputs", "inferred from the model if not given")
    inputs.add_argument(
        "--input",
        dest="specs",
        action="append",
        default=[],
        metavar="[NAME=]DIMS[:DTYPE]",
        help="repeatable: 1x3x224x224, ids=1x128:int64",
    )
    if batches is not None:
        inputs.add_argument("--batch", metavar="N,N", help=batches)
        inputs.add_argument("--seq", metavar="N,N", help="sequence lengths, such as 512,2048")
    else:
        inputs.add_argument("--batch", type=positive, metavar="N", help="batch size of inferred inputs")
        inputs.add_argument("--seq", type=positive, metavar="N", help="sequence length of inferred inputs")
    inputs.add_argument(
        "--dtype", metavar="T", help="type of floating-point inputs and parameters: float32, bfloat16, …"
    )
    run = parser.add_argument_group("run")
    # Commands that predict take --on instead; they accept --device only to say so.
    device_help = "device to analyse for and to measure on (default: cpu)" if has_device else argparse.SUPPRESS
    run.add_argument("--device", metavar="D", help=device_help)
    run.add_argument(
        "--mode",
        choices=("inference", "train"),
        default="inference",
        help="train: forward, backward and optimizer step (default: inference)",
    )


def named_arguments(function: Callable[..., object], args: argparse.Namespace) -> dict[str, Any]:
    """The options that are parameters of the function, by name."""
    given = {**vars(args), "progress": show_progress(args)}
    for name in {"weights", "deep"} & given.keys():
        given[name] = "auto" if given[name] is None else given[name]  # neither --weights nor --no-weights
    return {name: given[name] for name in signature(function).parameters if name in given}


def target_arguments(
    args: argparse.Namespace, *targets: str, function: Callable[..., object] | None = None
) -> dict[str, Any]:
    """The same for a function that runs models, by default `analyze`. A malformed target is refused before torch is
    imported."""
    from torchgauge.analysis.pipeline import analyze
    from torchgauge.source.target_check import check_target

    for target in (*targets, *((args.code,) if args.code else ())):
        check_target(target)
    if is_isolated() and "torch" not in sys.modules:  # the reader of a file that may need none, nor has such options
        return named_arguments(function or analyze, args)
    import_torch(shown=show_progress(args))
    from torchgauge.source import parse_dtype, parse_input

    parsed = {"specs": [parse_input(text) for text in args.specs], "dtype": args.dtype and parse_dtype(args.dtype)}
    return named_arguments(function or analyze, args) | parsed


class Reader(NamedTuple):
    """The files of a command that runs as a whole in a process without rights, and what that process imports before it
    gives up its rights; `journal` is that of its scan."""

    paths: list[str]
    torch: bool = True
    weights: bool = False
    journal: Path | None = None


def files_to_isolate(targets: Sequence[str | None], args: argparse.Namespace, *, takes_code: bool = True) -> list[str]:
    """The files of a command whose targets are all files: it can run as a whole without rights. Python code and models
    that are run for real cannot; then each file is read separately."""
    from torchgauge.analysis.isolated import needs_isolation
    from torchgauge.analysis.options import stored_path

    named = [target for target in targets if target is not None]
    stored = [stored_path(target, takes_code=takes_code) for target in named]
    is_isolated = all(needs_isolation(target, args.allow_pickle, takes_code=takes_code) for target in named)
    return [path for path in stored if path is not None] if is_isolated else []


def target_reader(args: argparse.Namespace) -> Reader:
    return Reader(files_to_isolate([args.target], args))


def add_measuring_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measuring", "real runs: weights are loaded and the model's code is executed")
    group.add_argument("--inference", action="store_true", help="measure time and memory, per module")
    group.add_argument(
        "--profile", action="store_true", help="also per op, with energy, system load, counters and thread scaling"
    )
    group.add_argument(
        "--sweep",
        action="append",
        metavar="KEY=A,B,C",
        help="repeatable; measure over batch, seq, dtype or threads: batch=1,2,4,8",
    )
    group.add_argument("--threads", type=positive, metavar="N", help="number of torch's threads (TORCHGAUGE_THREADS)")
    group.add_argument(
        "--budget",
        dest="budget_s",
        type=number,
        metavar="S",
        help="seconds to spend on undisturbed runs (TORCHGAUGE_BUDGET; default: 10)",
    )
    group.add_argument(
        "--memory-fraction",
        type=number,
        metavar="F",
        help="fraction of the CUDA device's memory to use, 0 to 1 (TORCHGAUGE_MEMORY_FRACTION)",
    )
    group.add_argument(
        "--profile-level",
        choices=("latency", "modules", "ops"),
        help="finest level that is timed (TORCHGAUGE_PROFILE_LEVEL; default: modules, with --profile ops)",
    )


def add_weights_dtype(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--weights-dtype", metavar="T", help="store the matrices of the layers as bf16, fp8, int8, int4, nf4, …"
    )


def add_prediction_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("prediction").add_argument(
        "--on",
        action="append",
        default=[],
        metavar="DEVICE",
        help="repeatable; also predict memory and time on this device, like fit and forecast",
    )


def add_table_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    table = parser.add_argument_group("report")
    table.add_argument(
        "--depth", type=int, metavar="N", help="levels of the module tree (default: as many as fit on a page)"
    )
    table.add_argument("--columns", metavar="A,B", help="columns of the module tree, such as params,macs,calls")
    table.add_argument("--sort", metavar="KEY", help="sort siblings by this column, the largest first")
    return table


def positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not '{text}'")
    return value


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not '{text}'") from None
