"""Threads of the CPU: how many, and whether there are cores for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule

# Medians closer than this are the same.
_LEAST_GAIN = 0.05
# Torch takes one thread per physical core, half of the logical ones: fewer than that were asked for.
_DEFAULT_SHARE = 0.5
# Threads this busy would have work for more.
_LEAST_EFFICIENCY = 0.7
# A machine of which other processes use more than this is shared: what is best there changes with them.
_SHARED_MACHINE_LOAD = 0.10


@rule("thread-count", family="threads")
def thread_count(evidence: Evidence) -> Iterator[Advice]:
    rows = _scaling(evidence)
    if len(rows) < 2 or _is_shared(evidence):
        return
    now, best = rows[-1], min(rows, key=lambda row: row["median_s"])
    gain = 1 - best["median_s"] / now["median_s"]
    if gain < _LEAST_GAIN:
        return
    yield Advice(
        rule="thread-count",
        where=Where(""),
        evidence={
            "threads": now["threads"],
            "best_threads": best["threads"],
            "median_s": now["median_s"],
            "best_median_s": best["median_s"],
        },
        recommendation="run it with fewer threads: more of them are slower here",
        change=Patch(f"torch.set_num_threads({best['threads']})"),
        expected_gain=Gain("time_s", gain / 2, gain, "the medians of runs with each number of threads"),
        risk="another batch size or a busier machine may want another number",
        confidence="high" if gain > 2 * _LEAST_GAIN else "medium",
    )


@rule("thread-oversubscription", family="threads")
def thread_oversubscription(evidence: Evidence) -> Iterator[Advice]:
    """Measured with more threads than there are cores: they wait for each other at every op. Where runs with fewer were
    measured too, `thread-count` has the answer."""
    threads, cores = _threads(evidence), evidence.capture.environment.cpu_cores
    is_measured = evidence.device == "cpu" and evidence.time_s and len(_scaling(evidence)) < 2
    if not is_measured or threads is None or cores is None:
        return
    if threads <= cores or _is_shared(evidence):
        return
    yield Advice(
        rule="thread-oversubscription",
        where=Where(""),
        evidence={"threads": threads, "cores": cores, **evidence.capture.environment.settings},
        recommendation="run it with no more threads than there are cores: an op ends with its slowest thread",
        change=Patch(f"torch.set_num_threads({cores})"),
        expected_gain=Gain(
            "time_s", 0.0, 1 - cores / threads, "assumed: none, up to the share of the threads that have no core"
        ),
        risk="a container limit that the system does not report may leave fewer cores",
        confidence="high",
    )


@rule("idle-cores", family="threads")
def idle_cores(evidence: Evidence) -> Iterator[Advice]:
    """Measured with fewer threads than torch takes by itself, all of them busy."""
    threads, cores = _threads(evidence), evidence.capture.environment.cpu_cores
    if evidence.device != "cpu" or not evidence.time_s or threads is None or cores is None:
        return
    # Of the speed-up over one thread where it was measured, otherwise how busy the threads were.
    rows, wanted = _scaling(evidence), int(cores * _DEFAULT_SHARE)
    busy = rows[-1].get("efficiency") if len(rows) > 1 else None
    busy = busy if busy is not None else (evidence.figures.get("threads") or {}).get("utilisation")
    if threads >= wanted or busy is None or busy < _LEAST_EFFICIENCY or _is_shared(evidence):
        return
    settings = evidence.capture.environment.settings  # of OpenMP, MKL and torch's threads between ops
    yield Advice(
        rule="idle-cores",
        where=Where(""),
        evidence={"threads": threads, "cores": cores, "thread_efficiency": busy, **settings},
        recommendation="run it with one thread per physical core: these threads are busy, and most cores are not used",
        change=Patch(f"torch.set_num_threads({wanted})  # instead of OMP_NUM_THREADS"),
        expected_gain=Gain(
            "time_s",
            0.0,
            busy * (1 - threads / wanted),
            "assumed: more threads reach the efficiency measured with these",
        ),
        risk="with several processes on the machine, fewer threads each are right",
        confidence="low" if len(rows) < 2 else "medium",
    )


def _scaling(evidence: Evidence) -> Sequence[Mapping[str, Any]]:
    return (evidence.figures.get("threads") or {}).get("scaling") or []


def _is_shared(evidence: Evidence) -> bool:
    """Whether other processes used the machine while the model was measured."""
    others = (evidence.figures.get("surroundings") or {}).get("other_processes_share")
    return (others or 0.0) > _SHARED_MACHINE_LOAD


def _threads(evidence: Evidence) -> int | None:
    """Those of the measured run."""
    measured: int | None = (evidence.figures.get("threads") or {}).get("intra_op")
    return measured
