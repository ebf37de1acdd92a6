"""How a measurement is made: what is given, else what the environment says, else the default."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch

from torchgauge.errors import UsageError
from torchgauge.measure.latency import Budget
from torchgauge.measure.threads import MOST_THREADS, thread_count

T = TypeVar("T")

THREADS = "TORCHGAUGE_THREADS"
MEMORY_FRACTION = "TORCHGAUGE_MEMORY_FRACTION"
BUDGET = "TORCHGAUGE_BUDGET"
PROFILE_LEVEL = "TORCHGAUGE_PROFILE_LEVEL"

# Finest level that is timed: the whole model, its modules, its ops.
LATENCY, MODULES, OPS = "latency", "modules", "ops"
LEVELS = (LATENCY, MODULES, OPS)

# The C++ analyser's variables, which stand for a setting that neither an argument nor a variable of ours gives.
# Its levels are numbers: 0 is the first of ours, from 2 on the last.
CPP_MEMORY_FRACTION = "PYTORCH_CUDA_MEMORY_FRACTION"
CPP_PROFILE_LEVEL = "PYTORCH_PROFILER_LEVEL"


@dataclass(frozen=True, slots=True)
class Settings:
    """`threads` None leaves torch's; `memory_fraction` is of a CUDA device's memory, None for all of it; `budget_s` is
    for the undisturbed runs; `profile_level` None leaves it to what is asked for. `notes` name settings that come from
    the variables of another tool."""

    threads: int | None = None
    memory_fraction: float | None = None
    budget_s: float = Budget().seconds
    profile_level: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = self.threads is None or (isinstance(self.threads, int) and 1 <= self.threads <= MOST_THREADS)
        _require(known, "threads", THREADS, f"at least 1 and at most {MOST_THREADS}", self.threads)
        fraction = self.memory_fraction
        in_range = fraction is None or (isinstance(fraction, int | float) and 0 < fraction <= 1)
        _require(in_range, "memory_fraction", MEMORY_FRACTION, "above 0 and at most 1", fraction)
        in_range = isinstance(self.budget_s, int | float) and 0 < self.budget_s < float("inf")
        _require(in_range, "budget_s", BUDGET, "seconds, above 0", self.budget_s)
        known = self.profile_level is None or self.profile_level in LEVELS
        _require(known, "profile_level", PROFILE_LEVEL, f"one of {', '.join(LEVELS)}", self.profile_level)

    @property
    def budget(self) -> Budget:
        return Budget(seconds=self.budget_s)

    def level(self, *, profile: bool) -> str:
        return self.profile_level or (OPS if profile else MODULES)

    def figures(self, *, profile: bool) -> dict[str, Any]:
        """Plain JSON: `measurements.settings`; the notes are among those of the measurements."""
        figures = asdict(self) | {"profile_level": self.level(profile=profile)}
        del figures["notes"]
        return figures


def _require(holds: bool, name: str, variable: str, what: str, value: object) -> None:
    if not holds:
        raise UsageError(f"{name} ({variable}) must be {what}, not {value!r}")


def read_settings(
    *,
    threads: int | None = None,
    memory_fraction: float | None = None,
    budget_s: float | None = None,
    profile_level: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    said = os.environ if environ is None else environ
    budget = _first(budget_s, said, BUDGET, float)
    fraction = _first(memory_fraction, said, MEMORY_FRACTION, float)
    level = _first(profile_level, said, PROFILE_LEVEL, str)
    notes = []
    if fraction is None and (fraction := _first(None, said, CPP_MEMORY_FRACTION, float)) is not None:
        notes.append(f"{CPP_MEMORY_FRACTION}={fraction:g} is taken as --memory-fraction {fraction:g}")
    if level is None and (number := _first(None, said, CPP_PROFILE_LEVEL, int)) is not None:
        level = LEVELS[min(max(number, 0), len(LEVELS) - 1)]
        notes.append(f"{CPP_PROFILE_LEVEL}={number} is taken as --profile-level {level}")
    return Settings(
        threads=_first(threads, said, THREADS, int),
        memory_fraction=fraction,
        budget_s=Budget().seconds if budget is None else budget,
        profile_level=level,
        notes=tuple(notes),
    )


def _first(given: T | None, said: Mapping[str, str], variable: str, parse: Callable[[str], T]) -> T | None:
    if given is not None or not said.get(variable):
        return given
    try:
        return parse(said[variable].strip())
    except ValueError as error:
        raise UsageError(f"the environment variable {variable} is not a number: '{said[variable]}'") from error


@contextmanager
def applied(settings: Settings, device: torch.device) -> Iterator[None]:
    """As before when the block ends."""
    with ExitStack() as stack:
        stack.enter_context(thread_count(settings.threads))
        if settings.memory_fraction is not None and device.type == "cuda":
            stack.enter_context(_memory_fraction(settings.memory_fraction, device))
        yield


@contextmanager
def _memory_fraction(fraction: float, device: torch.device) -> Iterator[None]:
    # Before 2.8 torch does not expose the setting; assume all of the memory.
    read: Callable[[torch.device], float] | None = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    before = read(device) if read else 1.0
    torch.cuda.set_per_process_memory_fraction(fraction, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)
