"""What the second of two readings is to the first, as far as that can be said."""

from __future__ import annotations

from dataclasses import dataclass

from torchgauge.report.comparison.readings import Reading
from torchgauge.units import format_percent, format_value

SAME, MORE, LESS = "same", "more", "less"
# Measured, intervals overlap; measured once, spread unknown; one measured, the other estimated;
# missing on a side.
INDISTINCT, UNCERTAIN, INCOMPARABLE, UNKNOWN = "indistinct", "uncertain", "incomparable", "unknown"

# Up to a tenfold change per cent read well, beyond it factors do.
_FACTORS_FROM = 10


@dataclass(frozen=True, slots=True)
class Change:
    """`difference` and `ratio` are given only where the two can be compared."""

    verdict: str
    difference: float | None = None
    ratio: float | None = None

    @property
    def text(self) -> str:
        """`+12.3 %`, `×14`, `no difference`."""
        if self.verdict in (MORE, LESS):
            if self.ratio is None:
                return "new"
            if self.ratio >= _FACTORS_FROM:
                return f"×{format_value(self.ratio)}"
            share = format_percent(self.ratio - 1)
            if share in ("0.0 %", "-0.0 %"):
                return "< 0.1 %"
            return f"+{share}" if self.ratio > 1 else share.replace("-", "−")
        words = {SAME: "=", INDISTINCT: "no difference", UNCERTAIN: "?", INCOMPARABLE: "not comparable", UNKNOWN: "-"}
        return words[self.verdict]


def change(base: Reading, other: Reading) -> Change:
    if base.value is None or other.value is None:
        return Change(UNKNOWN)
    if base.origin != other.origin:
        return Change(INCOMPARABLE)
    difference = other.value - base.value
    verdict = SAME if difference == 0 else MORE if difference > 0 else LESS
    if base.varies or other.varies:
        if base.interval is None or other.interval is None:
            verdict = UNCERTAIN
        elif base.interval[0] <= other.interval[1] and other.interval[0] <= base.interval[1]:
            verdict = INDISTINCT
    return Change(verdict, difference, other.value / base.value if base.value else None)
