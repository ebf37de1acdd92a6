"""Equal advice about several places becomes one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torchgauge.advise import code
from torchgauge.advise.record import CONFIDENCES, Advice, Gain

# The largest moment of the run counts: what two places save there does not add up.
_NOT_ADDITIVE = {"peak_activation_bytes"}


def merged(found: Iterable[Advice]) -> list[Advice]:
    """One piece of advice for each recommendation of a rule; it stands at the place that gains most, and
    `evidence["places"]` has them all."""
    groups: dict[tuple[str, str, str | None], list[Advice]] = {}
    for advice in found:
        quantity = advice.expected_gain.quantity if advice.expected_gain else None
        groups.setdefault((advice.rule, advice.recommendation, quantity), []).append(advice)
    return [_merge(group) if len(group) > 1 else group[0] for group in groups.values()]


def _merge(group: list[Advice]) -> Advice:
    first = max(group, key=lambda advice: advice.expected_gain.middle if advice.expected_gain else 0.0)
    least = max(group, key=lambda advice: CONFIDENCES.index(advice.confidence))
    return replace(
        first,
        evidence={**first.evidence, "count": len(group), "places": [_place(advice) for advice in group]},
        # What is pasted is what the gain is promised for: the code of every place.
        change=code.merged([advice.change for advice in group]),
        expected_gain=_sum([advice.expected_gain for advice in group if advice.expected_gain], first.expected_gain),
        confidence=least.confidence,
    )


def _place(advice: Advice) -> dict[str, Any]:
    gain = advice.expected_gain
    shares = {"low": gain.low, "high": gain.high} if gain else {}
    return {**advice.where.member(), "evidence": dict(advice.evidence), **shares}


def _sum(gains: list[Gain], first: Gain | None) -> Gain | None:
    if first is None or first.quantity in _NOT_ADDITIVE:
        return first
    # Places that touch the same ops, as the products of one loop do, save their time once.
    apart: list[Gain] = []
    for gain in sorted(gains, key=lambda gain: -gain.high):
        own = gain.touched
        if own is None or all(2 * len(own & (other.touched or frozenset())) < len(own) for other in apart):
            apart.append(gain)
    low, high = sum(gain.low for gain in apart), sum(gain.high for gain in apart)
    every = [gain.touched for gain in apart]
    touched = None if any(ops is None for ops in every) else frozenset[int]().union(*(ops for ops in every if ops))
    return replace(first, low=min(low, 1.0), high=min(high, 1.0), touched=touched)
