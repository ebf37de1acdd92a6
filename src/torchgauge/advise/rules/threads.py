"""The number of threads, where it was measured."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule

# Medians closer than this are the same.
_LEAST_GAIN = 0.05


@rule("thread-count", family="threads")
def thread_count(evidence: Evidence) -> Iterator[Advice]:
    rows = (evidence.figures.get("threads") or {}).get("scaling") or []
    if len(rows) < 2:
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
        recommendation="run it with fewer threads: they cost more than they bring",
        code=f"torch.set_num_threads({best['threads']})",
        expected_gain=Gain("time_s", gain / 2, gain, "the medians of the measured runs with each number of threads"),
        risk="another batch size or a busier machine may want another number",
        confidence="high" if gain > 2 * _LEAST_GAIN else "medium",
    )
