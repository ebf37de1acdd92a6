"""`torchgauge demo`."""

from __future__ import annotations

import argparse
from pathlib import Path

from torchgauge.cli.analyze import RESULT as RESULT
from torchgauge.cli.output import check_outputs, deliver_view, show_progress
from torchgauge.progress import import_torch

SUMMARY = "analyse a small built-in model and write its report"
FILES = ("torchgauge-demo.html", "torchgauge-demo.json", "torchgauge-demo.txt")
DESCRIPTION = f"""\
Analyse a small image classifier and write into the current folder:
{", ".join(FILES)}
"""
EXAMPLES = (
    "torchgauge demo",
    "torchgauge demo -o demo.md",
    "torchgauge demo --json --quiet",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """The demo has no options."""


def run(args: argparse.Namespace) -> int:
    from torchgauge.analysis import analyze
    from torchgauge.analysis.advice import with_known_device

    import_torch(shown=show_progress(args))
    from torchgauge.cli.demo_model import DemoNet
    from torchgauge.report import Options
    from torchgauge.report.layout import terminal_width

    check_outputs(args.outputs)
    args.outputs = [*(str(Path.cwd() / name) for name in FILES), *args.outputs]
    view = with_known_device(analyze(DemoNet().eval(), (1, 3, 224, 224), progress=show_progress(args)))
    deliver_view(view, args, Options(width=terminal_width()))
    return 0
