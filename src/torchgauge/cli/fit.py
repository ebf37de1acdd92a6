"""`torchgauge fit TARGET --on DEVICE`."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout

from torchgauge.cli.output import check_outputs, deliver_prediction
from torchgauge.cli.target_options import (
    add_target_options,
    add_weights_dtype,
    positive,
    target_arguments,
    target_reader,
)
from torchgauge.errors import UsageError
from torchgauge.report.registry import FIT

SUMMARY = "will it fit on a GPU: predicted memory, a verdict and what to change"
DESCRIPTION = """\
Predict how much memory a model takes on a GPU, in inference or training,
without that GPU: allocated by tensors, reserved by torch's allocator and used
on the device, each with bounds. A device is a name (h200, a100, l4, rtx4090), a
size (24GiB) or this machine's GPU ("this"). --on takes several,
separated by commas. The exit status is 0 for every verdict.
"""
EXAMPLES = (
    "torchgauge fit torchvision:resnet50 --batch 64 --mode train --on 24GiB",
    "torchgauge fit hf:gpt2 --seq 1024 --on rtx4090,a100",
    "torchgauge fit model.py:Net --input 1x3x512x512 --amp bf16 -o fit.html",
)
RESULT = FIT
isolated_reader = target_reader


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="a target as in analyze")
    group = parser.add_argument_group("fit")
    group.add_argument(
        "--on", action="append", metavar="DEVICE", help="h200, a100, 24GiB, this, …; repeatable (default: h200)"
    )
    group.add_argument(
        "--optimizer", default="adamw", metavar="NAME", help="adamw, adam, sgd, adafactor, … (default: adamw)"
    )
    group.add_argument("--fused", action="store_true", default=None, help="use the optimizer's fused implementation")
    group.add_argument("--amp", choices=("bf16", "fp16"), help="run under autocast")
    group.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="activation checkpointing of blocks, or of modules by path pattern or class",
    )
    group.add_argument("--accumulate", type=positive, default=1, metavar="N", help="backward passes per step")
    group.add_argument(
        "--frozen", action="append", default=[], metavar="PATTERN", help="repeatable; do not train these parameters"
    )
    group.add_argument(
        "--lora", metavar="RANK:PATTERN", help="LoRA adapters on linear layers, such as 8:*q_proj.weight"
    )
    add_weights_dtype(group)
    group.add_argument("--channels-last", action="store_true", help="inputs and weights in channels-last memory format")
    group.add_argument(
        "--expandable-segments", action="store_true", help="expandable_segments:True of PYTORCH_CUDA_ALLOC_CONF"
    )
    group.add_argument(
        "--execution", choices=("eager", "graph"), default="eager", help="graph: a CUDA graph (default: eager)"
    )
    group.add_argument("--torch-version", metavar="V", help="kernels of this release (default: the installed one)")
    group.add_argument(
        "--no-remedies",
        dest="remedies",
        action="store_false",
        help="do not search for the largest batch and for remedies (faster)",
    )
    add_target_options(parser, batches="batch sizes, such as 1,8,32", has_device=False)


def run(args: argparse.Namespace) -> int:
    if args.device is not None:
        raise UsageError("fit takes --on DEVICE, not --device")
    check_outputs(args.outputs, FIT)
    from torchgauge.analysis.fitting import Fit, Fits, fit
    from torchgauge.predict.devices import find_devices

    devices = args.on or ["h200"]
    if "this" not in devices:
        find_devices(devices)  # unknown names are refused before torch is imported
    with redirect_stdout(sys.stderr):
        found = fit(**target_arguments(args, args.target, function=fit) | {"on": devices})
        report = (Fits([found]) if isinstance(found, Fit) else found).report(remedies=args.remedies)
    deliver_prediction(report, args)
    return 0
