"""`torchgauge forecast TARGET --on DEVICE`."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout

from torchgauge.cli.output import check_outputs, deliver_prediction, show_progress
from torchgauge.cli.target_options import (
    Reader,
    add_target_options,
    files_to_isolate,
    limit_arguments,
    target_arguments,
)
from torchgauge.errors import UsageError
from torchgauge.report.registry import FORECAST

SUMMARY = "predicted time and energy on other devices, with intervals"
DESCRIPTION = """\
Predict how long a run of a model takes on a GPU and at what energy, without
that GPU: for several devices and batches, with 90 % intervals, what bounds it,
and whether it fits. Devices are named (h200, a100, l4, rtx4090); "this" is the
present machine as "torchgauge system --calibrate" measured it.
"""
RESULT = FORECAST


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="a target as in analyze")
    group = parser.add_argument_group("forecast")
    group.add_argument("--on", action="append", metavar="DEVICE", help="repeatable, commas too (default: h200)")
    group.add_argument(
        "--execution",
        choices=("eager", "graph", "compiled"),
        default="eager",
        help="graph: a CUDA graph that is replayed; compiled: with the kernels that Inductor fuses (default: eager)",
    )
    group.add_argument("--optimizer", default="adamw", metavar="NAME", help="of --mode train: adamw, sgd, …")
    group.add_argument("--amp", choices=("bf16", "fp16"), help="autocast")
    group.add_argument("--channels-last", action="store_true", help="images and their weights channels last")
    group.add_argument(
        "--price", action="append", default=[], metavar="DEVICE=MONEY", help="repeatable: price of an hour, h200=3.2"
    )
    group.add_argument("--torch-version", metavar="V", help="kernels of this release (default: the installed one)")
    add_target_options(parser, several_batches=True, several_lengths=True)


def isolated_reader(args: argparse.Namespace) -> Reader:
    return Reader(files_to_isolate([args.target], args))


def run(args: argparse.Namespace) -> int:
    if args.device is not None:
        raise UsageError("forecast takes --on DEVICE, not --device")
    check_outputs(args.outputs, FORECAST)
    from torchgauge.predict.devices import find_device, split_names

    devices = args.on or ["h200"]
    for name in split_names(devices):
        if name not in ("this", "cpu") and not name.endswith(".npz"):
            find_device(name)  # unknown names are refused before torch is imported
    price = prices(args.price)
    with redirect_stdout(sys.stderr):
        arguments = target_arguments(args, args.target)
        from torchgauge.analysis.forecasting import Forecast, forecast
        from torchgauge.report.forecast import ForecastReport

        found = forecast(
            args.target,
            **{name: value for name, value in arguments.items() if name != "device"},
            **limit_arguments(args),
            on=devices,
            execution=args.execution,
            optimizer=args.optimizer,
            amp=args.amp,
            channels_last=args.channels_last,
            price=price,
            torch_version=args.torch_version,
            progress=show_progress(args),
        )
    deliver_prediction(ForecastReport([found] if isinstance(found, Forecast) else found), args)
    return 0


def prices(texts: list[str]) -> dict[str, float]:
    found = {}
    for text in (part for given in texts for part in given.split(",")):
        device, _, money = text.partition("=")
        try:
            found[device.strip()] = float(money)
        except ValueError:
            raise UsageError(f"--price is DEVICE=MONEY, such as h200=3.2, not '{text}'") from None
    return found
