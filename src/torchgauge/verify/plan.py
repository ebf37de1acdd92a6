"""The best combination of confirmed advice: starting from the largest gain, advice that adds a gain is included.

A CUDA graph launches all kernels at once, so shorter kernels gain more and additional ones cost nothing. Advice that
was slower alone is therefore tried with a graph, and the graph with advice that makes kernels shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchgauge.verify.bench import Bench, attempted, cleaned_up
from torchgauge.verify.code import function_text
from torchgauge.verify.registry import STAGES, Applied
from torchgauge.verify.verdict import TIME, Verdict, compared, confirmed, confirmed_elsewhere, failed, judge

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Plan as PlanRow
    from torchgauge.facts.document_types import Tried

# Only one piece of advice of each of these stages: compiling twice has no effect.
_GRAPH = "graph"
_ONCE = ("compile", _GRAPH)


Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Advice with correct outputs, and its time when applied alone; several rules may give the same advice."""

    rules: tuple[str, ...]
    applied: Applied
    stage: str
    verdict: Verdict

    @property
    def gain(self) -> float:
        return self.verdict.gain or 0.0

    @property
    def holds(self) -> bool:
        return self.verdict.is_kept


def ordered(chosen: Sequence[Candidate]) -> list[Candidate]:
    return sorted(chosen, key=lambda candidate: STAGES.index(candidate.stage))


@dataclass(frozen=True, slots=True)
class Plan:
    """A confirmed combination, its total gain, and the other combinations that were tried. The total of a single piece
    of advice is its own verdict."""

    chosen: tuple[Candidate, ...]
    total: Verdict
    tried: tuple[Tried, ...] = ()


def draft(bench: Bench, candidates: Sequence[Candidate], note: Note) -> Plan | None:
    """None if no advice is confirmed. `note` is called before each measurement."""
    # Confirmed advice by gain, then a graph that is not confirmed alone, then the rest, which may gain with the graph.
    ranked = sorted(candidates, key=lambda each: (not each.holds, not each.holds and each.stage != _GRAPH, -each.gain))
    if not ranked or not ranked[0].holds:
        return None
    best, *others = ranked
    chosen, tried = [best], []
    for candidate in others:
        stages = {each.stage for each in chosen}
        is_repeated = candidate.stage in _ONCE and candidate.stage in stages
        if is_repeated or not (candidate.holds or _GRAPH in (candidate.stage, *stages)):
            continue
        note("plan")
        row = _added(bench, chosen, candidate)
        tried.append(row)
        if row["kept"]:
            chosen.append(candidate)
    plan = Plan(tuple(chosen), best.verdict, tuple(tried))
    if len(chosen) == 1:
        return plan
    note("plan")
    return _with_total(plan, _total(bench, chosen))


def again(
    bench: Bench, plan: Plan, candidates: Sequence[Candidate], note: Note, elsewhere: Verdict | str | None = None
) -> Plan | None:
    """The plan after another round at another time, or after that of a second process (`elsewhere`); a new plan if a
    part of it was not confirmed again."""
    current = {each.applied.code: each for each in candidates}
    chosen = tuple(current[each.applied.code] for each in plan.chosen if each.applied.code in current)
    is_unchanged = [each.holds for each in chosen] == [each.holds for each in plan.chosen]
    known = replace(plan, chosen=chosen) if is_unchanged else draft(bench, candidates, note)
    if known is None:
        return None
    if len(known.chosen) == 1:
        return replace(known, total=known.chosen[0].verdict)
    if known.total.is_settled:
        return known
    if elsewhere is not None and is_unchanged:
        return _with_total(known, confirmed_elsewhere(known.total, elsewhere))
    note("plan")
    return _with_total(known, confirmed(known.total, _total(bench, known.chosen)))


def _with_total(plan: Plan, total: Verdict | str) -> Plan:
    """The plan with this total, or only its best advice if the combination is not confirmed."""
    if isinstance(total, Verdict) and total.is_kept:
        return replace(plan, total=total)
    best = max(plan.chosen, key=lambda candidate: candidate.gain)
    return Plan((best,), best.verdict, (*plan.tried, _row(plan.chosen, total)))


def _added(bench: Bench, chosen: Sequence[Candidate], candidate: Candidate) -> Tried:
    """The gain of a candidate over the combination so far."""
    together = ordered([*chosen, candidate])
    before, after = ([each.applied for each in some] for some in (ordered(chosen), together))

    def measure() -> Verdict:
        without, changed = bench.changed(before), bench.changed(after)
        error, allowed = compared(bench.original(), changed, tolerance(together))
        time = bench.timed(without, changed)
        return Verdict(TIME, time.gain, time.interval, error, allowed, time)

    with cleaned_up(bench, [each.code for each in after]):
        return _row(together, attempted(measure))


def _total(bench: Bench, chosen: Sequence[Candidate]) -> Verdict | str:
    applied = [each.applied for each in ordered(chosen)]
    with cleaned_up(bench, [each.code for each in applied]):
        return attempted(lambda: judge(bench, applied, TIME, tolerance(chosen)))


def tolerance(chosen: Sequence[Candidate]) -> float:
    return max(each.verdict.tolerance for each in chosen)


def _row(chosen: Sequence[Candidate], outcome: Verdict | str) -> Tried:
    figures = failed(TIME, outcome) if isinstance(outcome, str) else outcome.member()
    return {
        "rules": [rule for each in ordered(chosen) for rule in each.rules],
        "gain": figures["gain"],
        "ci95": figures["ci95"],
        "output_error": figures["output_error"],
        "kept": figures["kept"],
        "reason": figures["reason"],
    }


def member(plan: Plan, *, train: bool) -> PlanRow:
    """The `plan` member of the JSON document."""
    row = _row(plan.chosen, plan.total)
    return {
        "rules": row["rules"],
        "gain": row["gain"],
        "ci95": row["ci95"],
        "output_error": row["output_error"],
        "reason": row["reason"],
        "code": function_text([each.applied.code for each in ordered(plan.chosen)], train=train),
        "tried": list(plan.tried),
    }


def no_plan(reason: str) -> PlanRow:
    """If verification failed as a whole or was interrupted."""
    return {"rules": [], "gain": None, "ci95": None, "output_error": None, "reason": reason, "code": None, "tried": []}
