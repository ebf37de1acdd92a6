"""What a rule says: where, on what evidence, what to do, and what it may gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torchgauge.advise.code import Patch, SourceEdit

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Advice as AdviceRow

CONFIDENCES = ("high", "medium", "low")
# In the order in which advice is shown.
QUANTITIES = ("time_s", "peak_activation_bytes", "param_bytes", "stored_bytes")
BASES = ("measured", "predicted", "bound")
# "bug": the model hardly computes what its author wants; "gain": it does, at too high a cost.
KINDS = ("bug", "gain")


@dataclass(frozen=True, slots=True)
class Where:
    """A place in the model: a module's path ("" is the whole), indices of ops, a parameter's name, and the line of code
    ("file.py:LINE") that calls the first of the ops, with its text."""

    module: str | None = None
    ops: tuple[int, ...] = ()
    weight: str | None = None
    source: str | None = None
    line: str | None = None

    def member(self) -> dict[str, Any]:
        place = {"module": self.module, "ops": list(self.ops), "weight": self.weight}
        return {**place, "source": self.source, "line": self.line}


@dataclass(frozen=True, slots=True)
class Gain:
    """What would be saved, as shares (0 to 1) of the whole model's figure; `how` says how it was computed.

    `touched` are the ops that the change touches (None: all of them): no change saves more time than these take, and
    `registry.advise` lowers a gain that claims more. `amount` is the middle of the range in seconds or bytes; it and
    `basis` are filled in there too, from the evidence. `device`: it is a gain on that kind of device, not on the one of
    the analysis; `whole_s` is the time of the model there. `keeps_results`: results stay in memory instead of being
    made again, so fresh memory is not saved."""

    quantity: str
    low: float
    high: float
    how: str
    touched: frozenset[int] | None = None
    amount: float | None = None
    basis: str = "predicted"
    device: str | None = None
    whole_s: float | None = None
    keeps_results: bool = False

    def __post_init__(self) -> None:
        if self.quantity not in QUANTITIES:
            raise ValueError(f"no quantity '{self.quantity}'; one of: {', '.join(QUANTITIES)}")
        if self.basis not in BASES:
            raise ValueError(f"no basis '{self.basis}'; one of: {', '.join(BASES)}")
        if not 0 <= self.low <= self.high <= 1:
            raise ValueError(f"a gain is a range of shares from 0 to 1, not {self.low} to {self.high}")

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def is_time(self) -> bool:
        return self.quantity == "time_s"

    def member(self) -> dict[str, Any]:
        amount = {"seconds": self.amount} if self.is_time else {"bytes": _whole_number(self.amount)}
        shares = {"quantity": self.quantity, "low": self.low, "high": self.high}
        place = {} if self.device is None else {"device": self.device}
        return {**shares, **amount, "basis": self.basis, **place, "how": self.how}


def _whole_number(value: float | None) -> int | None:
    return None if value is None else round(value)


@dataclass(frozen=True, slots=True)
class Advice:
    """`recommendation` is worded without figures and names of the place, so that equal blocks get equal words and
    become one piece of advice; the figures are `evidence`. `change` is what to run on the model or to edit in its
    source; None where the recommendation says it all. `expected_gain` may be None for a bug: what it costs is not the
    point."""

    rule: str
    where: Where
    evidence: Mapping[str, Any]
    recommendation: str
    change: Patch | SourceEdit | None
    expected_gain: Gain | None
    risk: str
    confidence: str
    kind: str = "gain"

    def __post_init__(self) -> None:
        if self.confidence not in CONFIDENCES:
            raise ValueError(f"no confidence '{self.confidence}'; one of: {', '.join(CONFIDENCES)}")
        if self.kind not in KINDS:
            raise ValueError(f"no kind '{self.kind}'; one of: {', '.join(KINDS)}")
        if self.expected_gain is None and self.kind != "bug":
            raise ValueError(f"the advice of '{self.rule}' is not a bug, so it needs an expected gain")

    @property
    def code(self) -> str | None:
        return None if self.change is None else self.change.text()

    @property
    def code_kind(self) -> str | None:
        """ "patch": statements to run on the model; "edit": a diff of its source."""
        return None if self.change is None else "patch" if isinstance(self.change, Patch) else "edit"

    def member(self) -> AdviceRow:
        """The row of the JSON document."""
        row = {
            "rule": self.rule,
            "kind": self.kind,
            "where": self.where.member(),
            "evidence": dict(self.evidence),
            "recommendation": self.recommendation,
            "code": self.code,
            "code_kind": self.code_kind,
            "expected_gain": None if self.expected_gain is None else self.expected_gain.member(),
            "risk": self.risk,
            "confidence": self.confidence,
            "verified": None,
        }
        return cast("AdviceRow", row)
