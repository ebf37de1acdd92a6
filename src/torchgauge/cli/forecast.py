"""`torchgauge forecast TARGET --on DEVICE`."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout

from torchgauge.cli.output import check_outputs, deliver_prediction
from torchgauge.cli.target_options import add_target_options, target_arguments, target_reader
from torchgauge.errors import UsageError
from torchgauge.report.registry import FORECAST

SUMMARY = "predicted time and energy on a GPU, with intervals"
DESCRIPTION = """\
Predict how much time and energy a run of a model takes on a GPU, without that
GPU: for several devices and batch sizes, with 90 % intervals, what bounds it,
and whether it fits. A device is a name (h200, a100, l4, rtx4090) or "this": the
present machine, as "torchgauge system --calibrate" measured it.
"""
EXAMPLES = (
    "torchgauge forecast timm:vit_base_patch16_224 --batch 1,32 --on h200",
    "torchgauge forecast model.py:Net --mode train --amp bf16 --on a100,l4",
    "torchgauge forecast model.py:Net --execution graph --price h200=3.2",
)
RESULT = FORECAST
isolated_reader = target_reader


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="a target as in analyze")
    group = parser.add_argument_group("forecast")
    group.add_argument(
        "--on", action="append", metavar="DEVICE", help="h200, a100, this, …; repeatable (default: h200)"
    )
    group.add_argument(
        "--execution",
        choices=("eager", "graph", "compiled"),
        default="eager",
        help="graph: a CUDA graph; compiled: torch.compile with Inductor (default: eager)",
    )
    group.add_argument(
        "--optimizer", default="adamw", metavar="NAME", help="for --mode train: adamw, sgd, … (default: adamw)"
    )
    group.add_argument("--amp", choices=("bf16", "fp16"), help="run under autocast")
    group.add_argument("--channels-last", action="store_true", help="inputs and weights in channels-last memory format")
    group.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="DEVICE=MONEY",
        help="repeatable; price of an hour, such as h200=3.2",
    )
    group.add_argument("--torch-version", metavar="V", help="kernels of this release (default: the installed one)")
    batches = "batch sizes, such as 1,8,32; auto: the one with the highest throughput"
    add_target_options(parser, batches=batches, has_device=False)


def run(args: argparse.Namespace) -> int:
    if args.device is not None:
        raise UsageError("forecast takes --on DEVICE, not --device")
    check_outputs(args.outputs, FORECAST)
    from torchgauge.analysis.forecasting import Forecast, forecast
    from torchgauge.predict.devices import find_device, split_names
    from torchgauge.report.forecast import ForecastReport

    devices = args.on or ["h200"]
    for name in split_names(devices):
        if name not in ("this", "cpu") and not name.endswith(".npz"):
            find_device(name)  # unknown names are refused before torch is imported
    price = prices(args.price)
    with redirect_stdout(sys.stderr):
        found = forecast(**target_arguments(args, args.target, function=forecast) | {"on": devices, "price": price})
    deliver_prediction(ForecastReport([found] if isinstance(found, Forecast) else found), args)
    return 0


def prices(texts: list[str]) -> dict[str, float]:
    found = {}
    for text in (part for given in texts for part in given.split(",")):
        device, _, money = text.partition("=")
        try:
            found[device.strip()] = float(money)
        except ValueError:
            raise UsageError(f"--price must be DEVICE=MONEY, such as h200=3.2, not '{text}'") from None
    return found
