"""Parse, run one command, turn errors into a message and an exit status."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import takewhile
from types import ModuleType
from typing import NoReturn

from torchgauge import __version__
from torchgauge.cli import analyze, check, compare, completion, demo, devices, fit, forecast, llm, system, weights
from torchgauge.cli.interrupts import end_at_interrupt, raise_interrupts
from torchgauge.cli.target_options import Reader, number
from torchgauge.errors import TorchgaugeError, UnpicklingWarning, UsageError, one_line, unexpected
from torchgauge.isolation import is_isolated
from torchgauge.progress import say
from torchgauge.report.registry import suffix_help

COMMANDS: dict[str, ModuleType] = {
    "analyze": analyze,
    "weights": weights,
    "compare": compare,
    "check": check,
    "fit": fit,
    "forecast": forecast,
    "llm": llm,
    "devices": devices,
    "system": system,
    "demo": demo,
    "completion": completion,
}
EPILOG = """\
examples:
  torchgauge torchvision:resnet50
  torchgauge model.py:Net --input 1x3x224x224 -o report.html
  torchgauge weights model.safetensors

torchgauge TARGET is short for torchgauge analyze TARGET; see
torchgauge analyze --help for the targets and options.

exit status: 0 done; 1 the request could not be met; 2 wrong usage;
3 a budget is broken; 130 interrupted
"""
OPENING_FILES = ("analyze", "weights", "compare", "check", "fit", "forecast", "llm")
# What a command without rights returns: an exit status as text.
_STATUSES = {str(status).encode() for status in (0, 1, 2, 3, 130)}
# Options without a value that every command takes: they may also come before the command.
COMMON_FLAGS = ("--quiet", "--debug", "--no-progress", "--json", "--allow-pickle")


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    open_closed_streams()
    parser = build_parser()
    if not argv:
        parser.print_help(sys.stderr)
        return UsageError.exit_status
    for stream in (sys.stdout, sys.stderr):
        # A terminal with a small character set shows `?` for what it lacks; that must not fail.
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="replace")
    try:
        args, unknown = parser.parse_known_args(with_command(argv))
        if unknown:
            parser.error(
                f"unrecognized arguments: {one_line(' '.join(unknown))}{suggest_arguments(parser, args, unknown)}"
            )
    except SystemExit:
        # `torchgauge --help | head`: as below, the reader may have gone.
        try:
            sys.stdout.flush()
        except OSError:
            drop_stdout()
        raise
    with reported_errors(args) as outcome:
        raise_interrupts()
        if args.command in OPENING_FILES:
            check_limits(args.memory_limit, args.time_limit)
            if args.require_isolation:
                from torchgauge.isolation import require_barriers

                require_barriers()
        # Commands without this read no files themselves, or each file separately.
        isolated_reader = getattr(COMMANDS[args.command], "isolated_reader", None)
        reader: Reader | None = isolated_reader(args) if isolated_reader is not None else None
        outcome.status = run_isolated_command(args, reader) if reader and reader.paths else run_command(args)
    end_at_interrupt()
    return outcome.status


def run_command(args: argparse.Namespace) -> int:
    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        """Under --quiet only errors and warnings about pickles are printed."""
        if not args.quiet or issubclass(category, UnpicklingWarning):
            first, *more = str(message).splitlines() or [""]
            # Indented: only the first line of a warning is torchgauge's own.
            print_message("warning", "\n  ".join((first, *map(str.strip, more))))

    with warnings.catch_warnings():
        # Warnings about what a pickle runs are shown whatever filters the user has set.
        warnings.simplefilter("always", UnpicklingWarning)
        warnings.showwarning = show
        status: int = COMMANDS[args.command].run(args)
    sys.stdout.flush()
    return status


def check_limits(memory_limit: str | None, time_limit: float | None) -> None:
    """Malformed limits are refused even where no file is read."""
    if memory_limit is not None or time_limit is not None:
        from torchgauge.isolation import limits_for

        limits_for([], memory_limit, time_limit)


def run_isolated_command(args: argparse.Namespace, reader: Reader) -> int:
    """The whole command by a process without rights: it prints, and this one writes the files that were asked for."""
    from torchgauge.analysis.isolated import run_reader
    from torchgauge.isolation import limits_for, unexpected_message
    from torchgauge.source.target_check import check_target

    limits = limits_for(reader.paths, args.memory_limit, args.time_limit)
    for path in reader.paths:
        check_target(path)  # an empty file or a picture is refused before torch is imported
    status = run_reader(
        partial(isolated_command, args),
        reader.paths,
        limits,
        torch=reader.torch,
        weights=reader.weights,
        mode=getattr(args, "mode", None),
        device=getattr(args, "device", None),
        writable=args.outputs,
        journal=reader.journal,
    )
    try:
        sys.stdout.flush()
    except OSError:  # the reader has reported it
        drop_stdout()
    if status not in _STATUSES:
        raise unexpected_message(reader.paths[0], "no exit status")
    return int(status)


def isolated_command(args: argparse.Namespace) -> bytes:
    from torchgauge.analysis.isolated import report_loaded

    with reported_errors(args) as outcome:
        outcome.status = run_command(args)
    report_loaded()
    return str(outcome.status).encode()


@dataclass
class Outcome:
    status: int = TorchgaugeError.exit_status


@contextmanager
def reported_errors(args: argparse.Namespace) -> Iterator[Outcome]:
    """Errors in the block become a message and an exit status."""
    outcome = Outcome()
    try:
        yield outcome
    except TorchgaugeError as error:
        if args.debug:
            say(*traceback.format_exc().splitlines())
        # A misspelt command reads as a target: say so.
        print_message("error", str(error) + (misspelt_command(args) if isinstance(error, UsageError) else ""))
        outcome.status = error.exit_status
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing is wrong.
        drop_stdout()
        outcome.status = 0
    except OSError as error:
        # Errors of output files are reported elsewhere: this is stdout on a full disk, or a file that the model opens.
        if args.debug:
            say(*traceback.format_exc().splitlines())
        print_message("error", one_line(f"input or output failed: {error}"))
        drop_stdout()
        outcome.status = TorchgaugeError.exit_status
    except SystemExit as leaving:
        print_message("error", one_line(f"the model's code ended the program (SystemExit: {leaving.code})"))
        outcome.status = TorchgaugeError.exit_status
    except KeyboardInterrupt:
        outcome.status = 130
    except Exception as error:
        if args.debug:
            say(*traceback.format_exc().splitlines())
        print_message("error", "not enough memory" if isinstance(error, MemoryError) else unexpected(error))
        outcome.status = TorchgaugeError.exit_status


def open_closed_streams() -> None:
    """`torchgauge X >&-` leaves stdout closed, and the next file that is opened would take its number: everything
    printed would end up in that file. In this order each stream takes its usual number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 open until the end


def drop_stdout() -> None:
    """Otherwise Python reports an error when it flushes the stream at exit."""
    if is_isolated():  # its parent writes the text
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Parser(argparse.ArgumentParser):
    """Prints the error and where to find help, without the usage, which would fill the screen."""

    def error(self, message: str) -> NoReturn:
        say(*f"{self.prog}: error: {message}".split("\n"), f"See {self.prog} --help")
        self.exit(UsageError.exit_status)


def build_parser() -> Parser:
    parser = Parser(
        prog="torchgauge",
        description="Everything worth knowing about a PyTorch model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"torchgauge {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.SUMMARY,
            description=command.DESCRIPTION,
            epilog="\n  ".join(("examples:", *command.EXAMPLES)),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.configure(sub)
        if command is completion:
            sub.set_defaults(quiet=False, debug=False)
        else:
            add_common_options(sub, suffix_help(command.RESULT))
        if name in OPENING_FILES:
            add_limit_options(sub)
    return parser


def command_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    subparsers = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(subparsers.choices)


def add_common_options(parser: argparse.ArgumentParser, suffixes: str) -> None:
    parser.add_argument_group("safety", "nothing in a file is executed").add_argument(
        "--allow-pickle", action="store_true", help="unpickle a stored module, after printing what it will run"
    )
    group = parser.add_argument_group("output")
    formats = f"repeatable; format by suffix: {suffixes}"
    group.add_argument("-o", dest="outputs", action="append", default=[], metavar="FILE", help=formats)
    group.add_argument("--json", action="store_true", help="print JSON instead of text")
    group.add_argument("--quiet", action="store_true", help="print only errors and what a pickle will run")
    group.add_argument("--no-progress", action="store_true", help="hide the progress indicator")
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits", "files are read in a separate process without rights")
    group.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="memory limit for reading, such as 4GiB (default: the larger of 2 GiB and twice the file size)",
    )
    group.add_argument(
        "--time-limit",
        type=number,
        metavar="SECONDS",
        help="time limit for reading (default: 300, more for large files)",
    )
    group.add_argument(
        "--require-isolation",
        action="store_true",
        help="open no file where a part of the isolation is missing (torchgauge system)",
    )


def with_command(argv: list[str]) -> list[str]:
    """`TARGET …` as `analyze TARGET …`; a command may follow common flags."""
    flags = list(takewhile(lambda word: word in COMMON_FLAGS, argv))
    rest = argv[len(flags) :]
    if rest and rest[0] in COMMANDS:
        return [rest[0], *flags, *rest[1:]]
    if rest and rest[0] in ("-h", "--help", "--version"):
        return rest
    return ["analyze", *argv]


def misspelt_command(args: argparse.Namespace) -> str:
    target = getattr(args, "target", None) or ""
    close = [] if os.path.exists(target) else get_close_matches(target, COMMANDS, n=1)
    return f"\nDid you mean the command '{close[0]}'?" if close else ""


def suggest_arguments(parser: argparse.ArgumentParser, args: argparse.Namespace, unknown: Sequence[str]) -> str:
    """A suggestion for arguments that the command does not know."""
    known = list(command_parsers(parser)[args.command]._option_string_actions)
    close = [get_close_matches(word.partition("=")[0], known, n=1) for word in unknown if word.startswith("-")]
    meant = list(dict.fromkeys(match for matches in close for match in matches))
    return f"\nDid you mean {', '.join(meant)}?" if meant else misspelt_command(args)


def print_message(kind: str, message: str) -> None:
    first, *more = message.split("\n")
    say(f"torchgauge: {kind}: {first}", *more)
