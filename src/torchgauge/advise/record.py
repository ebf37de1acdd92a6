"""What a rule says: where, on what evidence, what to do, and what it may gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CONFIDENCES = ("high", "medium", "low")
QUANTITIES = (
    "time_s", "energy_j", "bytes_moved", "flops", "peak_activation_bytes", "param_bytes", "stored_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Where:
    """A place in the model: a module's path ("" is the whole), indices of ops, a parameter's name."""

    module: str | None = None
    ops: tuple[int, ...] = ()
    weight: str | None = None

    def member(self) -> dict[str, Any]:
        return {"module": self.module, "ops": list(self.ops), "weight": self.weight}


@dataclass(frozen=True, slots=True)
class Gain:
    """What would be saved, as shares (0 to 1) of the whole model's figure; `how` says how it was computed."""

    quantity: str
    low: float
    high: float
    how: str

    def __post_init__(self) -> None:
        if self.quantity not in QUANTITIES:
            raise ValueError(f"no quantity '{self.quantity}'; one of: {', '.join(QUANTITIES)}")
        if not 0 <= self.low <= self.high <= 1:
            raise ValueError(f"a gain is a range of shares from 0 to 1, not {self.low} to {self.high}")

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    def member(self) -> dict[str, Any]:
        return {"quantity": self.quantity, "low": self.low, "high": self.high, "how": self.how}


@dataclass(frozen=True, slots=True)
class Advice:
    """`recommendation` is worded without figures and names of the place, so that equal blocks get equal words and
    become one piece of advice; the figures are `evidence`. `code` is what to paste: one line for each place."""

    rule: str
    where: Where
    evidence: Mapping[str, Any]
    recommendation: str
    code: str | None
    expected_gain: Gain
    risk: str
    confidence: str

    def __post_init__(self) -> None:
        if self.confidence not in CONFIDENCES:
            raise ValueError(f"no confidence '{self.confidence}'; one of: {', '.join(CONFIDENCES)}")

    def member(self) -> dict[str, Any]:
        """The row of the JSON document."""
        return {
            "rule": self.rule,
            "where": self.where.member(),
            "evidence": dict(self.evidence),
            "recommendation": self.recommendation,
            "code": self.code,
            "expected_gain": self.expected_gain.member(),
            "risk": self.risk,
            "confidence": self.confidence,
            "verified": None,
        }
