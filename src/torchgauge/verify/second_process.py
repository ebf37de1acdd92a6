"""A second process, started later, that repeats the measurement of the first.

A gain may be an accident of one process: the placement of tensors in memory, code that was compiled or warmed up
before. The second process builds the model from the target if possible; otherwise it gets a pickled copy.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Protocol, TypedDict

import psutil
import torch
from torch import nn

from torchgauge.interpreter import python_command, python_environment
from torchgauge.measure.measuring import failure_text
from torchgauge.measure.settings import Settings, applied
from torchgauge.measure.subject import ready
from torchgauge.source import Candidate, resolve
from torchgauge.source.offline import offline_for
from torchgauge.source.process_state import rng_untouched
from torchgauge.source.real_model import load_real_model, runs_allowed
from torchgauge.verify.bench import SEED, Bench, attempted
from torchgauge.verify.difference import Difference
from torchgauge.verify.pairs import Paired, Switches
from torchgauge.verify.registry import Applied, NotApplicableError
from torchgauge.verify.verdict import TIME, Verdict, judge

# Seconds to start, import and build, and the most budgets for the runs.
_START_S, _MAX_BUDGETS = 180.0, 25.0
# Disk and memory for the pickled copy and the model loaded from it, relative to the model.
_SPACE_FACTOR = 2.5
_CALL = "import sys; from torchgauge.verify.second_process import main; main(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Job:
    """Advice that is applied together, and the allowed error of its outputs."""

    applied: tuple[Applied, ...]
    tolerance: float


class _Round(TypedDict):
    logs: list[float]
    floor: float
    others_share: float | None


class _Error(TypedDict):
    relative: float | None
    cosine: float | None
    top1: float | None
    reason: str | None


class _Row(TypedDict):
    """The result of a job in JSON, from the second process: `time` of a `Paired`, `error` of a `Difference`."""

    time: _Round
    error: _Error
    tolerance: float
    samples: int


def _row(bench: Bench, job: Job) -> _Row | str:
    try:
        found = attempted(lambda: judge(bench, job.applied, TIME, job.tolerance))
    except NotApplicableError as error:
        return str(error)
    if isinstance(found, str):
        return found
    if found.time is None:
        return str(found.reason)
    time, apart = found.time, found.error
    return {
        "time": {"logs": time.logs, "floor": time.floor, "others_share": time.others_share},
        "error": {"relative": apart.relative, "cosine": apart.cosine, "top1": apart.top1, "reason": apart.reason},
        "tolerance": found.tolerance,
        "samples": found.samples,
    }


def _read_row(row: _Row | str) -> Verdict | str:
    if isinstance(row, str):
        return row
    time = Paired(**row["time"], in_second_process=True)
    error = Difference(**row["error"])
    return Verdict(TIME, time.gain, time.interval, error, row["tolerance"], time, samples=row["samples"])


class SecondProcess(Protocol):
    """Returns the verdict of each job, or a message if applying it failed; the reason if there is no second process."""

    def measure(self, jobs: Sequence[Job]) -> list[Verdict | str] | str: ...


@dataclass(frozen=True, slots=True)
class Setup:
    """How the second process gets the model and runs it. `target` is the text of a target (with `code` for bare
    weights) or the model itself."""

    target: str | nn.Module
    code: str | nn.Module | None
    allow_pickle: bool
    candidate: Candidate
    device: torch.device
    dtype: torch.dtype | None
    train: bool
    settings: Settings
    seconds: float

    def measure(self, jobs: Sequence[Job]) -> list[Verdict | str] | str:
        held = [each for each in (self.target, self.code) if isinstance(each, nn.Module)]
        needed = _SPACE_FACTOR * sum(
            tensor.nbytes for model in held for tensor in (*model.parameters(), *model.buffers())
        )
        if needed > min(shutil.disk_usage(gettempdir()).free, psutil.virtual_memory().available):
            return "not enough memory or disk space for a copy of the model in a second process"
        with TemporaryDirectory(prefix="torchgauge-") as folder:
            order = (self, list(jobs), Switches.now(), torch.get_default_dtype())
            try:
                torch.save(order, Path(folder, "order"))
            # Pickling runs code of the model's classes, which may raise anything.
            except Exception as error:
                return f"the model cannot be pickled for a second process: {failure_text(error)}"
            limit_s = _START_S + _MAX_BUDGETS * self.seconds * (len(jobs) + 1)
            command = python_command("-c", _CALL, folder)
            try:
                # The user has already seen what the model's code prints.
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                    timeout=limit_s, check=False, env=python_environment(),
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return f"a second process took more than {limit_s:.0f} s"
            except OSError as error:
                return f"a second process could not be started: {error.strerror or error}"
            try:
                answer = json.loads(Path(folder, "answer").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                last = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
                return f"a second process failed: {last[-1]}"
        return answer if isinstance(answer, str) else [_read_row(row) for row in answer]

    @contextmanager
    def bench(self) -> Iterator[Bench]:
        """In the second process: the model as in the first one."""
        with rng_untouched():
            torch.manual_seed(SEED)
            source = runs_allowed(resolve(self.target, code=self.code, allow_pickle=self.allow_pickle))
            real = load_real_model(source)
        with (
            offline_for(self.target),
            applied(self.settings, self.device),
            ready(
                real.model,
                self.candidate,
                device=self.device,
                dtype=self.dtype,
                train=self.train,
                is_owned=real.is_owned,
            ) as subject,
        ):
            yield Bench(subject, None, self.train, self.seconds).with_floor()


def main(folder: str) -> None:
    """The entry point of the second process."""
    answer: list[_Row | str] | str
    try:
        # Written by the first process, into a folder that only this user can read.
        setup, jobs, switches, dtype = torch.load(Path(folder, "order"), weights_only=False)
        switches.apply()
        torch.set_default_dtype(dtype)
        with setup.bench() as bench:
            answer = [_row(bench, job) for job in jobs]
    # Building and running the model may raise anything.
    except (Exception, SystemExit) as error:
        answer = f"the model cannot be run in a second process: {failure_text(error)}"
    Path(folder, "answer").write_text(json.dumps(answer), encoding="utf-8")
