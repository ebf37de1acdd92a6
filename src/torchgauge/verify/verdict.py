"""The verdict on a piece of advice: a changed model measured against the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from torchgauge.units import format_percent, format_value
from torchgauge.verify.bench import SEED, Bench, Side, held_bytes, peak_bytes
from torchgauge.verify.difference import Difference, compare_outputs
from torchgauge.verify.pairs import ROUNDS, Paired
from torchgauge.verify.registry import ROUNDING, ROUNDING_BY_TYPE, Applied

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Verified

TIME, PEAK = "time_s", "peak_activation_bytes"
_HELD = ("param_bytes", "stored_bytes")
# Advice about memory also reports the time, measured less precisely, with this share of the budget.
_TIME_SHARE_FOR_MEMORY = 0.5
# Advice about time is measured in several rounds at different times.
_TIME_SHARE_PER_ROUND = 1 / ROUNDS
# A model whose own outputs vary by this much (random numbers, atomics) may differ by as much again.
_OWN_VARIATION_FACTOR = 2.0
RANDOM = "the outputs are partly random, so they cannot be compared"
_TOO_LONG = "the runs are too long for the time budget: raise TORCHGAUGE_VERIFY_BUDGET"
_TOO_NOISY = "the machine is too noisy to measure a gain"
CONFIRMED: Final = "confirmed"
REFUTED: Final = "refuted"
INCONCLUSIVE: Final = "inconclusive"
# If other processes use a larger share of the machine, times depend more on them than on the model.
MAX_FOREIGN_SHARE = 0.10


@dataclass(frozen=True, slots=True)
class Verdict:
    """`gain` is that of `quantity`; `time` is also measured for memory, or None. If the changed model runs several
    `samples` at once, time is per sample."""

    quantity: str
    gain: float | None
    ci95: tuple[float, float] | None
    error: Difference
    tolerance: float
    time: Paired | None = None
    before: float | None = None
    after: float | None = None
    samples: int = 1
    failed_elsewhere: str | None = None  # the failure in the second process
    one_process: str | None = None  # why there was no second process

    @property
    def verdict(self) -> Literal["confirmed", "refuted", "inconclusive"]:
        if self.error.reason == RANDOM:
            return INCONCLUSIVE
        if self._change() is not None:
            return REFUTED
        if self.ci95 is None:
            return INCONCLUSIVE
        low, high = self.ci95
        if self.quantity != TIME:
            return CONFIRMED if low > 0 else REFUTED
        if self.failed_elsewhere or self._is_disturbed or low <= 0 <= high:
            return INCONCLUSIVE
        return CONFIRMED if low > 0 else REFUTED

    @property
    def reason(self) -> str | None:
        """Why the advice is not confirmed; None if it is."""
        return self._change() or self._loss()

    @property
    def settled_by(self) -> str | None:
        """How to settle an inconclusive verdict."""
        if self.verdict != INCONCLUSIVE:
            return None
        if self.error.reason == RANDOM:
            return "to settle it, make the model deterministic"
        if self._is_disturbed:
            return "to settle it, try again on an idle machine"
        if self.failed_elsewhere or (self.time is not None and self.time.is_lost_elsewhere):
            return "to settle it, time the changed model in a separate process"
        return "to settle it, give it more time (TORCHGAUGE_VERIFY_BUDGET), on an idle machine"

    @property
    def _is_disturbed(self) -> bool:
        return self.time is not None and (self.time.most_foreign > MAX_FOREIGN_SHARE or self.time.disagrees)

    def _change(self) -> str | None:
        if self.error.reason is not None:
            return self.error.reason
        if self.error.relative is not None and self.error.relative > self.tolerance:
            apart, limit = format_value(self.error.relative), format_value(self.tolerance)
            return f"the outputs differ by {apart} of their norm; the limit is {limit}"
        return None

    def _loss(self) -> str | None:
        if self.ci95 is None:
            return _TOO_LONG
        low, high = self.ci95
        if self.quantity != TIME:
            return None if low > 0 else "it saves no memory" if high == 0 else f"it takes {self._more} more memory"
        if self.time is not None and self.time.most_foreign > MAX_FOREIGN_SHARE:
            share = format_percent(self.time.most_foreign)
            return f"other processes used {share} of the machine during the measurement"
        if self.failed_elsewhere:
            return f"failed in a second process: {self.failed_elsewhere}"
        if self.time is not None and self.time.is_lost_elsewhere:
            return "faster in this process but not in a second one"
        if self._is_disturbed:
            return "faster in one round, slower in another"
        if low > 0:
            return None
        if high < 0:
            return f"it takes {self._more} more time"
        is_noisy = self.time is not None and self.time.is_noisy
        return _TOO_NOISY if is_noisy else "no time gain above the noise"

    @property
    def _more(self) -> str:
        return format_percent(-(self.gain or 0.0))

    @property
    def is_unknown(self) -> bool:
        """Whether there were too few runs to decide."""
        return self.reason == _TOO_LONG

    @property
    def is_kept(self) -> bool:
        return self.verdict == CONFIRMED

    @property
    def is_kept_or_slow(self) -> bool:
        """Whether the outputs are right, whatever the time."""
        return self._change() is None and not self.is_unknown

    @property
    def is_settled(self) -> bool:
        """Whether no further round is needed: bytes are exact, only time is measured."""
        return self.quantity != TIME or self.time is None or self.time.is_settled

    def member(self) -> Verified:
        """The `verified` member of the JSON document."""
        return {
            "quantity": self.quantity,
            "gain": self.gain,
            "ci95": None if self.ci95 is None else list(self.ci95),
            "output_error": self.error.figures(),
            "tolerance": self.tolerance,
            "verdict": self.verdict,
            "kept": self.is_kept,
            "reason": self.reason,
            "settled_by": self.settled_by,
            "before": self.before,
            "after": self.after,
            "samples": self.samples,
            "one_process": self.one_process,
            "time": None if self.time is None else self.time.figures(),
        }


def measured(quantity: str) -> str:
    """The quantity to measure for advice about this quantity: bytes directly, everything else as time."""
    return quantity if quantity in (*_HELD, PEAK) else TIME


def failed(quantity: str, reason: str) -> Verified:
    """The `verified` member for advice that failed when it was applied."""
    nothing = Verdict(quantity, None, None, Difference(None), 0.0).member()
    nothing |= {"tolerance": None, "verdict": REFUTED, "kept": False, "reason": reason, "settled_by": None}
    return nothing


def judge(bench: Bench, applied: Sequence[Applied], quantity: str, tolerance: float) -> Verdict:
    """Outputs are compared first, because training changes the parameters."""
    if quantity == TIME and bench.is_slow:
        return Verdict(TIME, None, None, Difference(None), tolerance)
    original, changed = bench.original(), bench.changed(applied)
    error, allowed = compared(original, changed, tolerance)
    if quantity in _HELD:
        own = next((each.held_bytes for each in applied if each.held_bytes is not None), None)
        # A model that is only stored differently takes the same time.
        time = bench.timed(original, changed, _TIME_SHARE_FOR_MEMORY) if own is None else None
        before, after = held_bytes(original.subject.model), (own or held_bytes)(changed.subject.model)
        return _bytes_verdict(quantity, before, after, error, allowed, time)
    if quantity == PEAK:
        before, after = peak_bytes(original), peak_bytes(changed)
        time = bench.timed(original, changed, _TIME_SHARE_FOR_MEMORY)
        return _bytes_verdict(quantity, before, after, error, allowed, time)
    paired = bench.timed(original, changed, _TIME_SHARE_PER_ROUND)
    return Verdict(TIME, paired.gain, paired.interval, error, allowed, paired, samples=changed.samples)


def confirmed(first: Verdict, again: Verdict | str) -> Verdict | str:
    """All rounds together: confirmed if each round confirms it."""
    if isinstance(again, str) or again.time is None:
        return again
    time = replace(again.time, earlier=first.time)
    return replace(again, time=time, gain=time.gain, ci95=time.interval, one_process=first.one_process)


def confirmed_elsewhere(first: Verdict, again: Verdict | str) -> Verdict:
    """With the round of a second process; a failure there is not a confirmation."""
    if isinstance(again, str):
        return replace(first, failed_elsewhere=again)
    found = confirmed(first, again)
    assert isinstance(found, Verdict)
    return found


def _bytes_verdict(
    quantity: str, before: int, after: int, error: Difference, allowed: float, time: Paired | None
) -> Verdict:
    gain = 1 - after / before if before else 0.0
    return Verdict(quantity, gain, (gain, gain), error, allowed, time, before, after)


def compared(original: Side, changed: Side, tolerance: float) -> tuple[Difference, float]:
    """The difference of the outputs, and the limit for it."""
    expected = original.outputs()
    allowed = max(
        tolerance,
        max((ROUNDING_BY_TYPE.get(str(tensor.dtype), ROUNDING) for _, tensor in expected), default=ROUNDING),
        _OWN_VARIATION_FACTOR * (compare_outputs(expected, original.outputs()).relative or 0.0),
    )
    outputs = changed.outputs()
    if changed.samples != 1 and len(outputs) == len(expected):
        # From a larger batch, the samples of the original.
        pairs = zip(outputs, expected, strict=True)
        outputs = [(name, tensor[: like.shape[0]] if like.dim() else tensor) for (name, tensor), (_, like) in pairs]
    found = compare_outputs(expected, outputs)
    if found.reason is None and (found.relative or 0.0) > allowed:
        # The original may also return different outputs with other random numbers.
        apart = compare_outputs(expected, original.outputs(SEED + 1)).relative
        if apart is not None and apart > allowed:
            return replace(found, reason=RANDOM), allowed
    return found, allowed
