"""Advice tried on copies of a model, row by row, and the plan from what holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchgauge.errors import UsageError
from torchgauge.measure.measuring import INTERRUPTED, failure_text, let_go
from torchgauge.verify.code import function_text
from torchgauge.verify.difference import Difference
from torchgauge.verify.failures import attempted, silenced
from torchgauge.verify.judging import TIME, Verdict, judge
from torchgauge.verify.planning import Candidate, no_plan, plan
from torchgauge.verify.planning import steps as plan_steps
from torchgauge.verify.reasons import REASONS, UNKNOWN
from torchgauge.verify.registry import TRANSFORMATIONS, Transformation, load_transformations
from torchgauge.verify.sides import Bench, cleaned_up
from torchgauge.verify.trial import Applied, NotApplicableError

BUDGET = "TORCHGAUGE_VERIFY_BUDGET"
# Seconds for the runs of one recommendation, three times as many on a noisy machine; building, compiling and warming up
# come on top.
DEFAULT_SECONDS = 4.0

Tell = Callable[[int, int, str], None]
Row = Mapping[str, Any]


def read_budget(environ: Mapping[str, str] | None = None) -> float:
    text = (os.environ if environ is None else environ).get(BUDGET)
    if not text:
        return DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError as error:
        raise UsageError(f"the environment variable {BUDGET} is no number: '{text}'") from error
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{BUDGET} must be seconds, above 0, not {text}")
    return seconds


def verify(bench: Bench, advice: Sequence[Row], tell: Tell | None = None) -> tuple[list[Row], Row | None]:
    """The advice with what was found, and the plan. An interruption leaves what was verified until then."""
    load_transformations()
    work = _Verification(bench)
    rows = list(advice)
    try:
        failure = _own_failure(work) if any(row["rule"] in TRANSFORMATIONS for row in rows) else None
        if failure is not None:
            return [unverified(row, failure) for row in rows], None
        for number, row in enumerate(advice):
            if tell:
                tell(number, len(advice) + 1, row["rule"])
            rows[number] = work.verified(row)
        return rows, _planned(work, len(advice), tell)
    except KeyboardInterrupt:
        is_planning = all("unverified" in row for row in rows)
        left = [row if "unverified" in row else unverified(row, INTERRUPTED) for row in rows]
        return left, no_plan(INTERRUPTED) if is_planning else None


def unverified(row: Row, reason: str) -> Row:
    return {**row, "verified": None, "unverified": reason}


def _own_failure(work: _Verification) -> str | None:
    """Of the model as it is: no fault of what is tried on it. Where it runs, what a copy of it takes is the floor."""
    try:
        with silenced(), cleaned_up(work.bench, []):
            work.bench = work.bench.with_floor()
    except NotApplicableError as error:
        return str(error)
    # The model's own code may raise anything.
    except Exception as error:
        text = f"the model itself fails: {failure_text(error)}"
        let_go(error)
        return text
    return None


def _planned(work: _Verification, done: int, tell: Tell | None) -> Row | None:
    candidates = work.candidates()
    found: Row | None = None
    for number, made in enumerate(plan(work.bench, candidates)):
        found = made
        if tell and made is None:
            tell(done + number, done + plan_steps(candidates), "plan")
    return found


@dataclass(slots=True)
class _Verification:
    """What was measured so far: rules that say the same are measured once."""

    bench: Bench
    outcomes: dict[tuple[str, int, str], Verdict | str] = field(default_factory=dict)
    kept: dict[str, Candidate] = field(default_factory=dict)

    def verified(self, row: Row) -> Row:
        rule = str(row["rule"])
        entry = TRANSFORMATIONS.get(rule)
        if entry is None:
            return unverified(row, REASONS.get(rule, UNKNOWN))
        try:
            return self._tried(row, entry)
        except NotApplicableError as error:
            return unverified(row, str(error))

    def _tried(self, row: Row, entry: Transformation) -> Row:
        applied = attempted(lambda: entry.apply(self.bench.trial(row)))
        if isinstance(applied, str):
            return {**row, "verified": _failed(applied), "unverified": None}
        quantity = str(row["expected_gain"]["quantity"])
        outcome = self._measured(applied, quantity, entry.tolerance)
        if isinstance(outcome, str):
            return {**row, "verified": _failed(outcome), "unverified": None}
        self._keep(entry, applied, outcome)
        code = function_text([applied.code]) if applied.code else None
        return {**row, "verified": outcome.member() | {"code": code}, "unverified": None}

    def _measured(self, applied: Applied, quantity: str, tolerance: float) -> Verdict | str:
        key = (applied.code, applied.samples, quantity)
        if key not in self.outcomes:
            with cleaned_up(self.bench, [applied.code]):
                self.outcomes[key] = attempted(lambda: judge(self.bench, [applied], quantity, tolerance))
        return self.outcomes[key]

    def _keep(self, entry: Transformation, applied: Applied, outcome: Verdict) -> None:
        if not (outcome.is_kept and applied.in_plan and outcome.quantity == TIME and outcome.gain is not None):
            return
        same = self.kept.get(applied.code)
        rules = (*same.rules, entry.rule) if same else (entry.rule,)
        self.kept[applied.code] = Candidate(rules, applied, entry.stage, outcome.tolerance, outcome.gain)

    def candidates(self) -> list[Candidate]:
        return [replace(each, rules=tuple(dict.fromkeys(each.rules))) for each in self.kept.values()]


def _failed(reason: str) -> dict[str, Any]:
    empty = Verdict(TIME, None, None, Difference(None), 0.0).member()
    return empty | {"tolerance": None, "reason": reason, "code": None}
