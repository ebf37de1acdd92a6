"""The combination that verifies best: from the largest gain on, what gains further is added."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchgauge.verify.code import function_text
from torchgauge.verify.difference import Difference
from torchgauge.verify.failures import attempted
from torchgauge.verify.judging import TIME, Verdict, compared, confirmed, judge
from torchgauge.verify.registry import STAGES
from torchgauge.verify.sides import Bench, cleaned_up
from torchgauge.verify.trial import Applied

# Several ways to compile are the same way twice.
_ONCE = ("compile", "graph")

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Advice that holds by itself; several rules may say the same."""

    rules: tuple[str, ...]
    applied: Applied
    stage: str
    tolerance: float
    gain: float


def ordered(chosen: Sequence[Candidate]) -> list[Candidate]:
    return sorted(chosen, key=lambda candidate: STAGES.index(candidate.stage))


@dataclass(frozen=True, slots=True)
class Plan:
    """A combination, what it gained in all, and what else was tried on the way."""

    chosen: tuple[Candidate, ...]
    total: Verdict | str
    tried: tuple[Mapping[str, Any], ...] = ()

    @property
    def holds(self) -> bool:
        return isinstance(self.total, Verdict) and self.total.is_kept

    @property
    def is_settled(self) -> bool:
        return isinstance(self.total, str) or self.total.is_settled


def draft(bench: Bench, candidates: Sequence[Candidate], note: Note) -> Plan | None:
    """None where there is nothing to combine. `note` is called before each measurement."""
    if not candidates:
        return None
    best, *others = sorted(candidates, key=lambda candidate: -candidate.gain)
    chosen, tried = [best], []
    for candidate in others:
        if candidate.stage in _ONCE and any(each.stage == candidate.stage for each in chosen):
            continue
        note("plan")
        row = _added(bench, chosen, candidate)
        tried.append(row)
        if row["kept"]:
            chosen.append(candidate)
    note("plan")
    return _or_best_alone(bench, Plan(tuple(chosen), _total(bench, chosen), tuple(tried)))


def measured_again(bench: Bench, plan: Plan) -> Plan:
    """With another round of the whole, at another time."""
    if isinstance(plan.total, str):
        return plan
    again = _or_best_alone(bench, replace(plan, total=confirmed(plan.total, _total(bench, plan.chosen))))
    return again if again.chosen == plan.chosen else measured_again(bench, again)


def _or_best_alone(bench: Bench, plan: Plan) -> Plan:
    """What a combination falls back to where it does not hold as a whole."""
    if plan.holds or len(plan.chosen) == 1:
        return plan
    best = max(plan.chosen, key=lambda candidate: candidate.gain)
    return Plan((best,), _total(bench, [best]), (*plan.tried, _row(plan.chosen, plan.total)))


def no_plan(reason: str) -> dict[str, Any]:
    """Where it did not come to one."""
    return {"rules": [], "gain": None, "ci95": None, "output_error": None, "reason": reason, "code": None, "tried": []}


def _added(bench: Bench, chosen: Sequence[Candidate], candidate: Candidate) -> dict[str, Any]:
    """What a candidate gains over the combination so far."""
    together = ordered([*chosen, candidate])
    before, after = ([each.applied for each in some] for some in (ordered(chosen), together))

    def measure() -> Verdict:
        without, changed = bench.changed(before), bench.changed(after)
        error, allowed = compared(bench.original(), changed, max(each.tolerance for each in together))
        time = bench.timed(without, changed)
        return Verdict(TIME, time.gain, time.interval, error, allowed, time)

    with cleaned_up(bench, [each.code for each in after]):
        return _row(together, attempted(measure))


def _total(bench: Bench, chosen: Sequence[Candidate]) -> Verdict | str:
    applied = [each.applied for each in ordered(chosen)]
    with cleaned_up(bench, [each.code for each in applied]):
        return attempted(lambda: judge(bench, applied, TIME, max(each.tolerance for each in chosen)))


def _rules(chosen: Sequence[Candidate]) -> list[str]:
    return [rule for each in chosen for rule in each.rules]


def _row(chosen: Sequence[Candidate], outcome: Verdict | str) -> dict[str, Any]:
    figures = outcome if isinstance(outcome, Verdict) else Verdict(TIME, None, None, Difference(None), 0.0)
    member = figures.member()
    reason = outcome if isinstance(outcome, str) else figures.reason
    kept = {name: member[name] for name in ("gain", "ci95", "output_error")}
    return {"rules": _rules(chosen), **kept, "kept": reason is None, "reason": reason}


def member(plan: Plan) -> dict[str, Any]:
    """The document's `plan`; without rules where not even the best held in every round."""
    row = _row(ordered(plan.chosen), plan.total)
    is_kept = row.pop("kept")
    code = function_text([each.applied.code for each in ordered(plan.chosen)]) if is_kept else None
    return row | {"rules": row["rules"] if is_kept else [], "code": code, "tried": list(plan.tried)}
