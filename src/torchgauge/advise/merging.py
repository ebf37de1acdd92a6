"""Equal advice about several places becomes one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torchgauge.advise.listing import merged_code
from torchgauge.advise.record import CONFIDENCES, Advice, Gain

# The largest moment of the run counts: what two places save there does not add up.
_NOT_ADDITIVE = {"peak_activation_bytes"}


def merged(found: Iterable[Advice]) -> list[Advice]:
    """One piece of advice for each recommendation of a rule; it stands at the place that gains most, and
    `evidence["places"]` has them all."""
    groups: dict[tuple[str, str, str], list[Advice]] = {}
    for advice in found:
        groups.setdefault((advice.rule, advice.recommendation, advice.expected_gain.quantity), []).append(advice)
    return [_merge(group) if len(group) > 1 else group[0] for group in groups.values()]


def _merge(group: list[Advice]) -> Advice:
    first = max(group, key=lambda advice: advice.expected_gain.middle)
    least = max(group, key=lambda advice: CONFIDENCES.index(advice.confidence))
    return replace(
        first,
        evidence={**first.evidence, "count": len(group), "places": [_place(advice) for advice in group]},
        # What is pasted is what the gain is promised for: the code of every place.
        code=merged_code([advice.code for advice in group if advice.code]),
        expected_gain=_sum(group, first.expected_gain),
        confidence=least.confidence,
    )


def _place(advice: Advice) -> dict[str, Any]:
    gain = advice.expected_gain
    return {**advice.where.member(), "evidence": dict(advice.evidence), "low": gain.low, "high": gain.high}


def _sum(group: list[Advice], first: Gain) -> Gain:
    if first.quantity in _NOT_ADDITIVE:
        return first
    low, high = (sum(getattr(advice.expected_gain, name) for advice in group) for name in ("low", "high"))
    return replace(first, low=min(low, 1.0), high=min(high, 1.0))
