"""The ways a user opens a file. All go through `opened`: without the process that has no rights, so that what is shown
is what the guards themselves hold."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torchgauge as tg
from torchgauge.cli import main

# Real runs are short: what counts is whether something runs, not how fast.
ENVIRONMENT = {"TORCHGAUGE_BUDGET": "0.001", "TORCHGAUGE_VERIFY_BUDGET": "0.001", "TORCHGAUGE_THREADS": "1"}


def command(*words: str) -> Callable[[str], object]:
    return lambda path: main([*(word.format(path=path) for word in words), "--no-progress"])


STATIC: dict[str, Callable[[str], object]] = {
    "analyze": command("analyze", "{path}"),
    "weights": command("weights", "{path}"),
    "compare": command("compare", "{path}", "{path}"),
    "check": command("check", "{path}", "--max", "macs=1G"),
    "tg.analyze": tg.analyze,
    "tg.scan_weights": tg.scan_weights,
    "tg.load": tg.load,
}
MEASURED: dict[str, Callable[[str], object]] = {
    "analyze --inference": command("analyze", "{path}", "--inference"),
    "compare --inference": command("compare", "{path}", "{path}", "--inference"),
    "check --max time_s": command("check", "{path}", "--max", "time_s=100"),
    "tg.analyze(inference)": lambda path: tg.analyze(path, inference=True),
}
VERIFIED: dict[str, Callable[[str], object]] = {"analyze --verify": command("analyze", "{path}", "--verify")}
WAYS = STATIC | MEASURED | VERIFIED


@contextlib.contextmanager
def not_isolated() -> Iterator[None]:
    """This process reads files itself: it claims to be the one without rights."""
    with (
        mock.patch("torchgauge.analysis.isolated.is_isolated", return_value=True),
        mock.patch("torchgauge.analysis.comparison.is_isolated", return_value=True),
        mock.patch(
            "torchgauge.isolation.run_isolated", side_effect=AssertionError("another process would read the file")
        ),
    ):
        yield


def opened(path: Path, way: str) -> str:
    """Open a file in one of the ways: the outcome in a word or two. Nothing is printed."""
    quiet = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(not_isolated())
        stack.enter_context(contextlib.redirect_stdout(quiet))
        stack.enter_context(contextlib.redirect_stderr(quiet))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        try:
            status = WAYS[way](str(path))
        except SystemExit as error:
            return f"exit {error.code}"
        except Exception as error:
            return type(error).__name__
    return f"exit {status}" if isinstance(status, int) else "done"
