"""A model against its budget: what is within, what is broken and by which modules, what is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchgauge.facts import View
from torchgauge.report.budgets.contributors import Contributor, contributors
from torchgauge.report.budgets.limits import KEYS, Limit, Predicted, figure_of
from torchgauge.report.content.summary import model_kind
from torchgauge.report.measurements import energy_of, measurements_of
from torchgauge.units import format_count, format_percent

WITHIN, BROKEN, UNKNOWN = "within", "broken", "unknown"
# As the contract has it: a broken budget, and a request that could not be met.
BROKEN_STATUS, UNKNOWN_STATUS = 3, 1
BLAMED = 5
_FACTORS_FROM = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """`blamed` are the largest contributors of a broken limit; `reason` says why a figure is not known."""

    limit: Limit
    value: float | None
    state: str
    blamed: tuple[Contributor, ...] = ()
    reason: str | None = None

    @property
    def value_text(self) -> str:
        return KEYS[self.limit.key].form(self.value)

    @property
    def over_text(self) -> str:
        return KEYS[self.limit.key].form((self.value or 0) - self.limit.most)

    @property
    def used(self) -> float | None:
        """The share of the limit."""
        return self.value / self.limit.most if self.value is not None and self.limit.most else None

    @property
    def used_text(self) -> str:
        """In per cent as far as they read well, then as a factor."""
        is_factor = self.used is not None and self.used >= _FACTORS_FROM
        return f"×{format_count(self.used)}" if is_factor else format_percent(self.used)


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """One target and the verdict on each limit, in the order they were given. `failure` is why the target could not be
    analysed: nothing is known of it then."""

    target: str
    kind: str
    verdicts: tuple[Verdict, ...]
    failure: str | None = None

    @property
    def broken(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.state == BROKEN)

    @property
    def unknown(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.state == UNKNOWN)

    @property
    def exit_status(self) -> int:
        """A figure that is not known never passes."""
        return BROKEN_STATUS if self.broken else UNKNOWN_STATUS if self.unknown else 0


def check_view(view: View, limits: Sequence[Limit]) -> BudgetReport:
    verdicts = []
    for limit in limits:
        value = figure_of(view, limit.key)
        if value is None:
            verdict = Verdict(limit, None, UNKNOWN, reason=_reason(view, limit.key))
        elif value <= limit.most:
            verdict = Verdict(limit, value, WITHIN)
        else:
            verdict = Verdict(limit, value, BROKEN, tuple(contributors(view, limit.key, limit.most, BLAMED)))
        verdicts.append(verdict)
    return BudgetReport(view.capture.target.name, model_kind(view), tuple(verdicts))


def unchecked(target: str, limits: Sequence[Limit], failure: str) -> BudgetReport:
    """The verdicts on a target that could not be analysed."""
    reason = " ".join(failure.split())
    verdicts = tuple(Verdict(limit, None, UNKNOWN, reason=reason) for limit in limits)
    return BudgetReport(target, "", verdicts, reason)


def _reason(view: View, key: str) -> str:
    if key == "energy_j":
        energy = energy_of(view)
        told = energy["reason"] if energy else None
        return f"it was not measured: {told}" if told else "it was not measured: a run with --profile is needed"
    if key == "time_s":
        told = measurements_of(view).get("failure")
        return f"it was not measured: {told}" if told else "it was not measured: a run with --inference is needed"
    if Predicted.of(key) is not None:
        return "it was not predicted: name the device (--on h200); if it was named, the warnings say why not"
    if key in ("stored_bytes", "optimizer_elements"):
        return "the model is not stored in a file"
    return view.capture.run.reason or "the model was not run"
