"""Try each piece of advice on copies of a model, and make a plan of the confirmed ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from torch.jit import ScriptModule

from torchgauge.advise import Patch
from torchgauge.errors import UsageError
from torchgauge.measure.measuring import INTERRUPTED, clear_traceback, failure_text
from torchgauge.progress import Progress
from torchgauge.verify.bench import Bench, attempted, cleaned_up, silenced
from torchgauge.verify.code import function_text
from torchgauge.verify.difference import compare_outputs
from torchgauge.verify.pairs import ROUNDS
from torchgauge.verify.plan import Candidate, Note, Plan, again, draft, member, no_plan, ordered, tolerance
from torchgauge.verify.registry import (
    SCRIPT,
    TRANSFORMATIONS,
    Applied,
    NotApplicableError,
    Transformation,
    load_transformations,
)
from torchgauge.verify.second_process import Job, SecondProcess
from torchgauge.verify.verdict import TIME, Verdict, confirmed, confirmed_elsewhere, failed, judge, measured

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Advice
    from torchgauge.facts.document_types import Plan as PlanRow

# Why rules without a transformation cannot be tried.
_UNTRIED = {
    "it needs a change in the source of a forward": (
        "affine-after-layer", "batch-statistics-in-evaluation", "bias-before-norm",
        "broadcast-matmul", "cancelling-permutes", "cast-round-pointwise", "cast-round-trip", "causal-mask",
        "dense-experts", "device-transfer", "double-precision",
        "double-softmax", "dropout-in-evaluation", "expanded-mask", "grown-by-cat",
        "grows-with-calls", "held-activations", "host-wait", "joined-parts", "linear-after-gather",
        "loop-over-samples", "loop-over-steps", "narrow-heads", "needless-copy", "one-hot-product",
        "parallel-linears", "pointwise-before-pooling",
        "product-then-sum", "recomputed-constant", "repeated-buffers", "repeated-input", "repeated-keys",
        "repeated-part", "repeated-work", "resample-before-pointwise",
        "scan-in-python", "state-written-in-evaluation", "type-promotion", "unread-result",
        "unregistered-layers",
    ),
    "it is about the training loop, which is not part of the model": (
        "frozen-in-graph", "gradient-memory", "never-trained", "optimizer-state",
    ),
    "it changes the file, not the model; the expected gain is exact": ("duplicate-tensors", "stored-optimizer-state"),
    "it changes the results on purpose, so the two models cannot be compared": (
        "large-eps", "layer-in-forward",
    ),
    "the switch applies to the whole process, so also to the original model": (
        "attention-fast-path", "freed-memory",
    ),
    "the layers that read these outputs must shrink too, and only the forward shows which": ("dead-rows",),
    "the library decides how a layer restores its weights": ("dequantized-each-call",),
    "a narrower table needs training": ("embedding-dominated",),
    "the placement of experts depends on the available machines": ("idle-experts",),
    "the cache belongs to the generation loop around the model": ("kv-cache",),
    "torch has no layers for some of these formats": ("mixed-precision-plan",),
    "the original weights are unknown": ("quantized-but-larger",),
    "neighbouring layers must shrink too, and only the forward shows which": ("structured-pruning",),
    "the values of a trained model are unknown": ("zero-parameters",),
}  # fmt: skip
REASONS: Mapping[str, str] = MappingProxyType({rule: why for why, rules in _UNTRIED.items() for rule in rules})
UNKNOWN = "its rule has no transformation"


BUDGET = "TORCHGAUGE_VERIFY_BUDGET"
# Seconds for the runs of one piece of advice, up to three times as many on a noisy machine, plus the time to build,
# compile and warm up.
DEFAULT_SECONDS = 4.0


def read_budget(environ: Mapping[str, str] | None = None) -> float:
    text = (os.environ if environ is None else environ).get(BUDGET)
    if not text:
        return DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError as error:
        raise UsageError(f"the environment variable {BUDGET} is not a number: '{text}'") from error
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{BUDGET} must be a positive number of seconds, not {text}")
    return seconds


def verify(
    bench: Bench, advice: Sequence[Advice], progress: Progress | None = None, second: SecondProcess | None = None
) -> tuple[list[Advice], PlanRow | None]:
    """The advice with its verdicts, and the plan. The plan is None if nothing is confirmed, and empty if verification
    failed or was interrupted; verdicts reached until then are kept. `second` measures the last round."""
    load_transformations()
    work = _Verification(bench, list(advice))
    # The number of combinations to try is not known in advance: the total is an estimate.
    done, total_steps = 0, ROUNDS * len(advice) + 1

    def note(part: str) -> None:
        nonlocal done, total_steps
        total_steps = max(total_steps, done + 1)
        if progress:
            progress(done, total_steps, part)
        done += 1

    try:
        failure = _failure_of_original(work) if any(row["rule"] in TRANSFORMATIONS for row in advice) else None
        if failure is not None:
            return [unverified(row, failure) for row in advice], no_plan(failure)
        work.try_all(note)
        plan = draft(work.bench, work.candidates(), note)
        for rounds_left in reversed(range(ROUNDS - 1)):
            total = work.try_elsewhere(second, plan, note) if second is not None and not rounds_left else None
            if total is None:
                work.try_again(note)
            plan = None if plan is None else again(work.bench, plan, work.candidates(), note, total)
        return work.rows, None if plan is None else member(plan, train=bench.train)
    except KeyboardInterrupt:
        work.update_rows()
        left = [row if "unverified" in row else unverified(row, INTERRUPTED) for row in work.rows]
        return left, no_plan(INTERRUPTED)


def unverified(row: Advice, reason: str) -> Advice:
    return {**row, "verified": None, "unverified": reason}


def _failure_of_original(work: _Verification) -> str | None:
    """Why the unchanged model cannot be compared; otherwise measure the floor, the difference to an equal copy."""
    try:
        with silenced(), cleaned_up(work.bench, []):
            outputs = work.bench.original().outputs()
            work.bench = work.bench.with_floor()
        return compare_outputs(outputs, outputs).reason
    except NotApplicableError as error:
        return str(error)
    # The model's own code may raise anything.
    except Exception as error:
        text = f"the original model fails: {failure_text(error)}"
        clear_traceback(error)
        return text


@dataclass(slots=True)
class _Outcome:
    """The outcome of one transformation; several rules may give the same."""

    entry: Transformation
    applied: Applied
    quantity: str
    verdict: Verdict | str  # a message if it failed
    rules: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return isinstance(self.verdict, Verdict) and self.verdict.is_kept

    def row(self, advice: Advice, *, train: bool) -> Advice:
        if isinstance(self.verdict, str):
            return _refuted(advice, self.quantity, self.verdict)
        if self.verdict.is_unknown:
            return unverified(advice, str(self.verdict.reason))
        code = function_text([self.applied.code], train=train) if self.applied.code else None
        note = self.applied.remark(advice["evidence"].get("count", 1))
        return {**advice, "verified": {**self.verdict.member(), "code": code, "note": note}, "unverified": None}

    @property
    def candidate(self) -> Candidate | None:
        """The candidate for the plan, if it is about time and has correct outputs."""
        if isinstance(self.verdict, str) or not (self.applied.in_plan and self.quantity == TIME):
            return None
        if not self.verdict.is_kept_or_slow:
            return None
        return Candidate(self.rules, self.applied, self.entry.stage, self.verdict)


@dataclass(slots=True)
class _Verification:
    """The measurements so far; equal transformations are measured once."""

    bench: Bench
    rows: list[Advice]
    outcomes: dict[tuple[str, int, str], _Outcome] = field(default_factory=dict)
    tried: dict[int, _Outcome] = field(default_factory=dict)  # by the number of the row

    def try_all(self, note: Note) -> None:
        for number, row in enumerate(self.rows):
            note(row["rule"])
            entry = TRANSFORMATIONS.get(row["rule"])
            try:
                if entry is None:
                    raise NotApplicableError(REASONS.get(row["rule"], UNKNOWN))
                self.rows[number] = self._tried(number, row, entry)
            except NotApplicableError as error:
                self.rows[number] = unverified(row, str(error))

    def try_again(self, note: Note) -> None:
        """Another round of confirmed advice, at another time, because one round may be luck."""
        for outcome in self.outcomes.values():
            if isinstance(outcome.verdict, Verdict) and outcome.holds and not outcome.verdict.is_settled:
                note(f"{outcome.entry.rule} again")
                once_more = self._judged(outcome.entry, outcome.applied, outcome.quantity)
                outcome.verdict = confirmed(outcome.verdict, once_more)
        self.update_rows()

    def try_elsewhere(self, second: SecondProcess, plan: Plan | None, note: Note) -> Verdict | str | None:
        """The last round of confirmed advice and of the plan, in a second process. Returns the result for the plan (""
        for a single piece of advice); None if there is no second process, which the rows then explain."""
        holding = [
            (outcome, outcome.verdict)
            for outcome in self.outcomes.values()
            if isinstance(outcome.verdict, Verdict) and outcome.holds and not outcome.verdict.is_settled
        ]
        if not holding:
            return None
        jobs = [Job((outcome.applied,), verdict.tolerance) for outcome, verdict in holding]
        chosen = plan.chosen if plan is not None and len(plan.chosen) > 1 else ()
        if chosen:
            jobs.append(Job(tuple(each.applied for each in ordered(chosen)), tolerance(chosen)))
        note("in a second process")
        found = second.measure(jobs)
        if isinstance(found, str):
            for outcome, verdict in holding:
                outcome.verdict = replace(verdict, one_process=found)
            return None
        for (outcome, verdict), elsewhere in zip(holding, found, strict=False):
            outcome.verdict = confirmed_elsewhere(verdict, elsewhere)
        self.update_rows()
        return found[-1] if chosen else ""

    def update_rows(self) -> None:
        """Write the current verdicts to the rows."""
        for number, outcome in self.tried.items():
            self.rows[number] = outcome.row(self.rows[number], train=self.bench.train)

    def candidates(self) -> list[Candidate]:
        return [found for outcome in self.outcomes.values() if (found := outcome.candidate) is not None]

    def _tried(self, number: int, row: Advice, entry: Transformation) -> Advice:
        if row["expected_gain"] is None:
            raise NotApplicableError("its rule names no quantity to measure")
        quantity = measured(row["expected_gain"]["quantity"])
        trial = self.bench.trial(row)
        applied = attempted(lambda: entry.apply(trial))
        if isinstance(applied, str):
            return _refuted(row, quantity, applied)
        if (named := Patch(applied.code).under_all_names(trial.capture.modules)).setup:
            applied = replace(applied, code=f"{named.text()}\n")
        if applied.code and entry.stage != "switches" and isinstance(self.bench.subject.model, ScriptModule):
            raise NotApplicableError(SCRIPT)
        key = (applied.code, applied.samples, quantity)
        if key not in self.outcomes:
            self.outcomes[key] = _Outcome(entry, applied, quantity, self._judged(entry, applied, quantity))
        outcome = self.tried[number] = self.outcomes[key]
        outcome.rules = tuple(dict.fromkeys((*outcome.rules, entry.rule)))
        return outcome.row(row, train=self.bench.train)

    def _judged(self, entry: Transformation, applied: Applied, quantity: str) -> Verdict | str:
        with cleaned_up(self.bench, [applied.code]):
            return attempted(lambda: judge(self.bench, [applied], quantity, entry.tolerance))


def _refuted(row: Advice, quantity: str, failure: str) -> Advice:
    """The row of advice that failed when it was applied."""
    return {**row, "verified": {**failed(quantity, failure), "code": None, "note": None}, "unverified": None}
