"""Runs bombs in a separate process with little memory, so that they fill the child's and not ours.

    python -m tests.bombs.running tests.bombs.scripts FOLDER [NAME ...]

A module of bombs has `BOMBS`, a table from a name to a function that writes a file into a folder and gives the
arguments of the command line, and may have `prepare`, for a run of all of them: it imports what their readers need, or
makes the bombs smaller. Without names all of them run, with limits of steps and ops that are small enough for a test;
those that are named run with the limits that users have.
"""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

Bomb = Callable[[Path], list[str]]
DATA_BYTES = 3 << 30  # torch and transformers take a third of it
SPINNER_DELAY_S = 1800.0  # a net: no bomb should take more than seconds


@dataclass(frozen=True, slots=True)
class Outcome:
    """`said` is what the command line wrote to stderr."""

    status: int
    said: str


def run_bombs(module: str, folder: Path, names: Collection[str] = ()) -> dict[str, Outcome]:
    """The answers of the command line to the bombs of a module; one that ended the process is missing."""
    command = [sys.executable, "-W", "ignore", "-m", __name__, module, str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SPINNER_DELAY_S, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"bomb"')]
    return {row["bomb"]: Outcome(row["status"], row["said"]) for row in rows}


def main(module: str, folder: Path, names: list[str]) -> None:
    import resource

    from torchgauge.cli import main as command

    family = importlib.import_module(module)
    bombs: Mapping[str, Bomb] = family.BOMBS
    if not names:
        _lower_limits()
        _load_libraries()
        getattr(family, "prepare", lambda: None)()
    for name in names or bombs:
        place = folder / name
        place.mkdir()
        arguments = bombs[name](place)
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, most))
        said = io.StringIO()
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            try:
                status = command(arguments)
            except BaseException as error:  # a traceback is what the test is about
                status = -1
                said.write(f"{type(error).__name__}: {error}")
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        print(json.dumps({"bomb": name, "status": status, "said": said.getvalue()}), flush=True)


def _lower_limits() -> None:
    limits = {
        "capture.recorder.MAX_OPS": 1 << 11,
        "capture.recorder.MAX_STEPS": 1 << 16,
        "capture.recorder.MAX_TENSORS": 1 << 16,
        "capture.values.MAX_WORK": 1 << 25,
        "checkpoint.limits.PATH_STEPS": 30_000,
        "source.config_limits.MAX_REGISTERED": 1 << 13,
    }
    for name, value in limits.items():
        mock.patch(f"torchgauge.{name}", value).start()


def _load_libraries() -> None:
    """Readers are forked from this process: each would import for seconds what it does not find here."""
    from torch import nn

    from torchgauge import analyze

    analyze(nn.Linear(4, 4), input_size=(1, 4), progress=False)
    for library in ("sympy", "torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor", "torch._refs"):
        importlib.import_module(library)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
