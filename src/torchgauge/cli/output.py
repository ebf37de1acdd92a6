"""Deliver the result of a command: files, text or JSON on stdout, notes on stderr."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchgauge.errors import TorchgaugeError
from torchgauge.progress import say, stage
from torchgauge.report.registry import ANALYSIS, find_format

if TYPE_CHECKING:
    from torchgauge.facts import View
    from torchgauge.report import Options
    from torchgauge.report.layout import Line
    from torchgauge.report.predictions import PredictionReport

# The status by which shells report Ctrl-C.
INTERRUPTED_STATUS = 130
INTERRUPTED = "interrupted"


def report_options(args: argparse.Namespace) -> Options:
    """The module table of a report: depth, columns, order, width. Refuses unknown columns."""
    from torchgauge.report import DEFAULT_COLUMNS, Options
    from torchgauge.report.layout import terminal_width

    columns = DEFAULT_COLUMNS if args.columns is None else tuple(part.strip() for part in args.columns.split(","))
    ops, all_advice = getattr(args, "ops", False), getattr(args, "all_advice", False)  # of analyze alone
    width = terminal_width()
    return Options(depth=args.depth, columns=columns, sort=args.sort, width=width, ops=ops, all_advice=all_advice)


def check_outputs(outputs: Sequence[str], result: str = ANALYSIS) -> None:
    """Check before a long analysis that its result can be written: suffixes and folders."""
    for output in outputs:
        find_format(output, result)
        # Links are followed, as when writing; a loop of links fails there.
        if not Path(os.path.realpath(output)).parent.is_dir():
            raise TorchgaugeError(f"cannot write '{output}': there is no folder '{Path(output).parent}'")
        if Path(output).is_dir():
            raise TorchgaugeError(f"cannot write '{output}': it is a folder")


def deliver(
    args: argparse.Namespace,
    *,
    save: Callable[[str], None],
    json: Callable[[], Iterable[str]],
    lines: Callable[[], Sequence[Line]],
    written: Sequence[str] = (),
) -> None:
    """Write the files except those `written` already, then JSON or the lines of the report to stdout. Files come first:
    they are complete even if the reader of stdout goes away."""
    from torchgauge.report.layout import write_lines

    shown = show_progress(args)
    for path in args.outputs:
        if path not in written:
            with stage(f"writing {Path(path).name}", shown=shown):
                save(path)
        if not args.quiet:
            say(f"wrote {Path(path)}")
    if args.json:
        sys.stdout.writelines(json())
    elif not args.quiet:
        with stage("writing the report", shown=shown):
            report = lines()
        write_lines(report, sys.stdout)


def deliver_view(view: View, args: argparse.Namespace, options: Options) -> None:
    from dataclasses import replace

    from torchgauge.report import render_pieces, save
    from torchgauge.report.formats.text import report_lines
    from torchgauge.report.layout import PLAIN_WIDTH

    print_findings(view)
    deliver(
        args,
        save=lambda path: save(view, path, replace(options, width=PLAIN_WIDTH)),
        json=lambda: (piece.decode() for piece in render_pieces(view, "json")),
        lines=lambda: report_lines(view, options),
    )


def deliver_prediction(report: PredictionReport, args: argparse.Namespace) -> None:
    from torchgauge.report.layout import terminal_width
    from torchgauge.report.predictions import render_json

    deliver(args, save=report.save, json=lambda: [render_json(report)], lines=lambda: report.lines(terminal_width()))


def show_progress(args: argparse.Namespace) -> bool | None:
    """None where there is no terminal: no progress bar then, but stages are still announced."""
    return False if args.quiet or args.no_progress else sys.stderr.isatty() or None


def print_findings(*views: View) -> None:
    """What a reader must know first also goes to stderr: stdout may be a file, or JSON."""
    from torchgauge.report.content.findings import findings
    from torchgauge.report.layout import Span, write_lines
    from torchgauge.units import visible

    for view in views:
        name = visible(view.capture.target.name)
        for found in findings(view):
            write_lines([(Span(f"torchgauge: warning: {name}: {visible(found.text)}", "alarm"),)], sys.stderr)


# This many unreadable tensors are listed with their reason, the others by name.
_NAMED_FAILURES = 5


def print_failures(view: View) -> int:
    """Print the tensors that could not be read; the exit status."""
    statistics = view.capture.statistics
    failures = list(statistics.failures) if statistics else []
    if statistics and statistics.against:
        failures += [(row["name"], row["reason"]) for row in statistics.against["failures"]]
    for name, reason in failures[:_NAMED_FAILURES]:
        say(f"torchgauge: error: {name} could not be read: {reason}")
    if len(failures) > _NAMED_FAILURES:
        names = ", ".join(name for name, _ in failures[_NAMED_FAILURES:])
        say(f"torchgauge: error: {len(failures) - _NAMED_FAILURES:,} more tensors could not be read: {names}")
    return TorchgaugeError.exit_status if failures else 0


def print_measuring_failures(view: View) -> int:
    """Print why the measurement was incomplete; the exit status."""
    from torchgauge.facts.measurements import measurements_of

    figures = measurements_of(view)
    failures = [f"sweep, {row['key']} {row['value']}: {row['failure']}" for row in figures.get("sweep") or ()
                if row["failure"] and row["failure"] != INTERRUPTED]  # fmt: skip
    if figures.get("failure") == INTERRUPTED:
        say("torchgauge: interrupted: the report has what was measured so far")
        return INTERRUPTED_STATUS
    failures += [failure] if (failure := figures.get("failure")) else []
    for failure in failures:
        say(f"torchgauge: error: measuring failed: {failure}")
    return TorchgaugeError.exit_status if failures else 0
