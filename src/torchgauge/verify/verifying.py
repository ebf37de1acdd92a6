"""Advice tried on copies of a model, row by row, and the plan from what holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.jit import ScriptModule

from torchgauge.errors import UsageError
from torchgauge.measure.measuring import INTERRUPTED, failure_text, let_go
from torchgauge.verify.code import function_text
from torchgauge.verify.difference import Difference
from torchgauge.verify.failures import attempted, silenced
from torchgauge.verify.judging import TIME, Verdict, confirmed, judge
from torchgauge.verify.pairs import MOST_ROUNDS
from torchgauge.verify.planning import Candidate, Note, Plan, draft, measured_again, member, no_plan
from torchgauge.verify.reasons import REASONS, UNKNOWN
from torchgauge.verify.registry import TRANSFORMATIONS, Transformation, load_transformations
from torchgauge.verify.sides import Bench, cleaned_up
from torchgauge.verify.trial import SCRIPT, Applied, NotApplicableError

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
    work = _Verification(bench, list(advice))
    note = _Progress(tell, 2 * len(advice) + 1)
    plan: Plan | None = None
    try:
        failure = _own_failure(work) if any(row["rule"] in TRANSFORMATIONS for row in advice) else None
        if failure is not None:
            return [unverified(row, failure) for row in advice], None
        work.try_all(note)
        plan = draft(work.bench, work.candidates(), note)
        for _ in range(MOST_ROUNDS - 1):
            work.try_again(note)
            plan = _again(work, plan, note)
        return work.rows, None if plan is None else member(plan)
    except KeyboardInterrupt:
        work.tell_again()
        is_planning = all("unverified" in row for row in work.rows)
        left = [row if "unverified" in row else unverified(row, INTERRUPTED) for row in work.rows]
        return left, no_plan(INTERRUPTED) if is_planning else None


@dataclass(slots=True)
class _Progress:
    """`total` is a guess: how many combinations there are to try shows on the way."""

    tell: Tell | None
    total: int
    done: int = 0

    def __call__(self, part: str) -> None:
        self.total = max(self.total, self.done + 1)
        if self.tell:
            self.tell(self.done, self.total, part)
        self.done += 1


def _again(work: _Verification, plan: Plan | None, note: Note) -> Plan | None:
    """Another round of the plan as it is, or of a new one where a part of it did not hold again."""
    if plan is None:
        return None
    standing = work.candidates()
    if not {each.applied.code for each in plan.chosen} <= {each.applied.code for each in standing}:
        plan = draft(work.bench, standing, note)
    if plan is None or plan.is_settled:
        return plan
    note("plan")
    return measured_again(work.bench, plan)


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


@dataclass(slots=True)
class _Outcome:
    """What came of one way to apply advice; several rules may say the same."""

    entry: Transformation
    applied: Applied
    quantity: str
    verdict: Verdict | str
    rules: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return isinstance(self.verdict, Verdict) and self.verdict.is_kept

    def row(self, advice: Row) -> Row:
        if isinstance(self.verdict, str):
            return {**advice, "verified": _failed(self.verdict), "unverified": None}
        if self.verdict.is_unknown:
            return unverified(advice, str(self.verdict.reason))
        code = function_text([self.applied.code]) if self.applied.code else None
        shown = {"code": code, "note": self.applied.note}
        return {**advice, "verified": self.verdict.member() | shown, "unverified": None}


@dataclass(slots=True)
class _Verification:
    """What was measured so far: what says the same is measured once."""

    bench: Bench
    rows: list[Row]
    outcomes: dict[tuple[str, int, str], _Outcome] = field(default_factory=dict)
    tried: dict[int, _Outcome] = field(default_factory=dict)  # by the number of the row

    def try_all(self, note: Note) -> None:
        for number, row in enumerate(self.rows):
            note(str(row["rule"]))
            self.rows[number] = self._verified(number, row)

    def try_again(self, note: Note) -> None:
        """Another round of what holds, at another time: what was luck does not hold twice."""
        for outcome in self.outcomes.values():
            if isinstance(outcome.verdict, Verdict) and outcome.holds and not outcome.verdict.is_settled:
                note(f"{outcome.entry.rule} again")
                outcome.verdict = confirmed(outcome.verdict, self._judged(outcome))
        self.tell_again()

    def tell_again(self) -> None:
        """Rows as they are known now."""
        for number, outcome in self.tried.items():
            self.rows[number] = outcome.row(self.rows[number])

    def candidates(self) -> list[Candidate]:
        return [found for outcome in self.outcomes.values() if (found := _candidate(outcome)) is not None]

    def _verified(self, number: int, row: Row) -> Row:
        rule = str(row["rule"])
        entry = TRANSFORMATIONS.get(rule)
        if entry is None:
            return unverified(row, REASONS.get(rule, UNKNOWN))
        try:
            return self._tried(number, row, entry)
        except NotApplicableError as error:
            return unverified(row, str(error))

    def _tried(self, number: int, row: Row, entry: Transformation) -> Row:
        applied = attempted(lambda: entry.apply(self.bench.trial(row)))
        if isinstance(applied, str):
            return {**row, "verified": _failed(applied), "unverified": None}
        if applied.code and entry.stage != "switches" and isinstance(self.bench.subject.model, ScriptModule):
            raise NotApplicableError(SCRIPT)
        quantity = str(row["expected_gain"]["quantity"])
        outcome = self.outcomes.get((applied.code, applied.samples, quantity))
        if outcome is None:
            outcome = _Outcome(entry, applied, quantity, "")
            outcome.verdict = self._judged(outcome)
            self.outcomes[applied.code, applied.samples, quantity] = outcome
        outcome.rules = tuple(dict.fromkeys((*outcome.rules, entry.rule)))
        self.tried[number] = outcome
        return outcome.row(row)

    def _judged(self, outcome: _Outcome) -> Verdict | str:
        applied, tolerance = outcome.applied, outcome.entry.tolerance
        with cleaned_up(self.bench, [applied.code]):
            return attempted(lambda: judge(self.bench, [applied], outcome.quantity, tolerance))


def _candidate(outcome: _Outcome) -> Candidate | None:
    verdict, applied = outcome.verdict, outcome.applied
    if isinstance(verdict, str) or not (outcome.holds and applied.in_plan and verdict.quantity == TIME):
        return None
    return (
        None
        if verdict.gain is None
        else Candidate(outcome.rules, applied, outcome.entry.stage, verdict.tolerance, verdict.gain)
    )


def _failed(reason: str) -> dict[str, Any]:
    empty = Verdict(TIME, None, None, Difference(None), 0.0).member()
    return empty | {"tolerance": None, "reason": reason, "code": None, "note": None}
