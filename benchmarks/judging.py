"""The limits that the static analysis must keep, and whether a run kept them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from comparison import OURS, Result

MEAN_RATIO = 0.5
WORST_RATIO = 1.5
JUDGED_MACS = 10**9
LARGE_RATIO = 2.0
LARGE_ADDED_BYTES = 300 * 10**6
# A cost linear in the ops is the same for every op; the rest of this is noise.
GROWTH = 1.25


@dataclass(frozen=True, slots=True)
class Verdict:
    limit: str
    measured: str
    passed: bool


def judge_headline(results: list[Result]) -> list[Verdict]:
    ours = {result.subject: result for result in results if result.tool == OURS}
    mean = geometric_mean([result.ratio or 0.0 for result in ours.values()])
    inexact = [name for name, result in ours.items() if result.macs != result.true_macs]
    return [
        Verdict(f"geometric mean over a bare forward at most {MEAN_RATIO}", f"{mean:.2f}", mean <= MEAN_RATIO),
        _below_every_peer(results, ours),
        Verdict("MACs equal to the unit", ", ".join(inexact) or "all equal", not inexact),
    ]


def _below_every_peer(results: Iterable[Result], ours: dict[str, Result]) -> Verdict:
    faster = [
        f"{result.tool} on {result.subject} ({result.ratio:.2f})"
        for result in results
        if result.tool != OURS and result.ratio and result.ratio <= (ours[result.subject].ratio or 0.0)
    ]
    return Verdict("below every peer on each model", ", ".join(faster) or "below all", not faster)


def judge_sweep(results: Iterable[Result]) -> list[Verdict]:
    judged = [result for result in results if result.tool == OURS and (result.true_macs or 0) >= JUDGED_MACS]
    worst = max(judged, key=lambda result: result.ratio or 0.0)
    ratio = worst.ratio or 0.0
    limit = f"no model of 1 GMAC or more above {WORST_RATIO}"
    return [Verdict(limit, f"worst {ratio:.2f} ({worst.subject})", ratio <= WORST_RATIO)]


def judge_large(rows: Iterable[dict[str, Any]]) -> list[Verdict]:
    verdicts = []
    for row in rows:
        name, ratio, added = row["name"], row["ratio"], row["added_bytes"]
        verdicts += [
            Verdict(f"{name}: at most {LARGE_RATIO:g}× its bare meta forward", f"{ratio:.2f}", ratio <= LARGE_RATIO),
            Verdict(
                f"{name}: adds less than {LARGE_ADDED_BYTES // 10**6} MB",
                f"{added / 10**6:.0f} MB",
                added < LARGE_ADDED_BYTES,
            ),
        ]
    return verdicts


def judge_growth(rows: list[dict[str, Any]]) -> list[Verdict]:
    """The largest model against the cheapest op of the smaller ones, whose fixed part weighs more."""
    cheapest = min(row["seconds_per_op"] for row in rows[:-1])
    growth = rows[-1]["seconds_per_op"] / cheapest
    limit = f"linear: an op of the largest model at most {GROWTH} times one of a smaller"
    return [Verdict(limit, f"{growth:.2f} times", growth <= GROWTH)]
