"""The registry of rules: from evidence about the model to advice, and from the row of a tensor to recommendations.

@rule("my-rule", family="mine")
def my_rule(evidence: Evidence) -> Iterator[Advice]:
    ...


@tensor_rule("tensor-mine")
def my_tensor_rule(row: TensorRow) -> Iterator[str]:
    ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from math import sqrt
from pathlib import PurePath
from pkgutil import iter_modules
from typing import Any

from torchgauge.advise.code import Patch, SourceEdit, merged_changes
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.op_time import OpTimes
from torchgauge.advise.record import CONFIDENCES, Advice, Gain
from torchgauge.errors import UsageError
from torchgauge.registry import Registry

# Returns advice as it is to be shown, or None to withdraw it.
Check = Callable[[Advice], Advice | None]
Finder = Callable[[Evidence], Iterator[Advice]]
# The row of a tensor in the JSON document; figures may be missing or null.
TensorRow = Mapping[str, Any]
TensorFinder = Callable[[TensorRow], Iterator[str]]
# Choices that every model has; they are listed apart from advice.
OPTIONS = ("precision", "batch", "compile", "quantize", "memory", "layout")
# Of targets whose modules cannot be replaced, what made them of one whose can.
_MADE_BY = {"torchscript": "torch.jit.script or trace", "exported": "torch.export"}
# Gains whose middle is below these shares of the whole are left out unless all advice is asked for. To edit source code
# is more work than to run a patch or to set a switch.
LEAST_TIME, LEAST_TIME_OF_EDIT, LEAST_BYTES = 0.01, 0.015, 0.05
# The same for predicted times, and for any gain of rules that ask for another forward: it must be clear of what a
# measurement can tell. Of 37 measured lines about time, 27 of 28 from here on are useful and none is wrong; below,
# 4 of 9 are useful and 2 are wrong.
LEAST_PREDICTED_TIME = 0.04
# Families of rules by whose advice ops do not run again, and the part of the time of an advice that another one covers.
_DONE_ONCE, _COVERED = {"constants", "unused"}, 0.8
# Options cost more: a compiler's time at every start, a model to evaluate again.
LEAST_TIME_OF_OPTION, LEAST_SIZE_OF_OPTION = 0.02, 1 << 20


@dataclass(frozen=True, slots=True)
class Rule:
    """`option`: it speaks of a choice that every model has (one of `OPTIONS`), not of a flaw of this one. `least_time`:
    the share of the time below which its advice is left out, where that is not the one of all rules."""

    name: str
    family: str
    find: Finder
    option: str | None = None
    least_time: float | None = None


@dataclass(frozen=True, slots=True)
class TensorRule:
    """`weights_only`: not for buffers and the codes of a packing; `of_state`: also for optimizer state."""

    name: str
    find: TensorFinder
    weights_only: bool
    of_state: bool = False


RULES: Registry[str, Rule] = Registry("rule")
TENSOR_RULES: Registry[str, TensorRule] = Registry("tensor rule")


def rule(
    name: str, *, family: str, option: str | None = None, least_time: float | None = None
) -> Callable[[Finder], Finder]:
    if option is not None and option not in OPTIONS:
        raise ValueError(f"no option '{option}'; one of: {', '.join(OPTIONS)}")
    return RULES.register_as(lambda find: Rule(name, family, find, option, least_time), name)


def tensor_rule(
    name: str, *, weights_only: bool = True, of_state: bool = False
) -> Callable[[TensorFinder], TensorFinder]:
    return TENSOR_RULES.register_as(lambda find: TensorRule(name, find, weights_only, of_state), name)


def recommend(row: TensorRow) -> list[str]:
    """The recommendations of all tensor rules; a rule is silent if the row lacks its figures."""
    load_rules()
    is_weight = row.get("role") in (None, "parameter") and row.get("logical_elements") is None
    is_state = row.get("role") == "optimizer"
    rules = (
        rule for rule in TENSOR_RULES.values() if (rule.of_state if is_state else is_weight or not rule.weights_only)
    )
    return [text for rule in rules for text in rule.find(row)]


def advise(
    evidence: Evidence, silence: Sequence[str] = (), *, all_advice: bool = False, check: Check | None = None
) -> list[Advice]:
    """What the rules say about this model that are not silenced: equal advice merged, bugs first, then the largest gain
    in time. Small gains are left out unless `all_advice`. `check` gets each piece of advice that would be shown, and
    returns it, changed or unchanged, or None to withdraw it."""
    found = _found(evidence, silence, is_option=False)
    always: set[tuple[str, str]] = set()
    if evidence.op_times:
        # What the static analysis says is not lost by profiling: it stays, with what it is worth by measured times.
        always = {_key(advice) for advice in ranked(_found(evidence.without_times(), silence, is_option=False))}
    said: list[Advice] = []
    for advice in ranked(found, all_advice=all_advice, always=always):
        if all_advice or not _is_said(advice, said, evidence.times):
            shown = advice if check is None else check(advice)
            said += [] if shown is None else [shown]
    # The check may have changed gains.
    return said if check is None else ranked(said, all_advice=all_advice, always=always)


def _is_said(advice: Advice, said: Sequence[Advice], times: OpTimes) -> bool:
    """Whether a line before it saves its time already: of two about the same ops, one of which says that these need not
    run at all, or only once."""
    own = _ops_gone(advice)
    covers = [_ops_gone(before) for before in said if not _DONE_ONCE.isdisjoint(map(_family, (before, advice)))]
    return bool(own) and any(times.share(own & ops) >= _COVERED * times.share(own) for ops in covers)


def _family(advice: Advice) -> str | None:
    entry = RULES.get(advice.rule)
    return None if entry is None else entry.family


def _ops_gone(advice: Advice) -> frozenset[int]:
    """The ops whose time on the device of the run an advice speaks of."""
    gain = advice.expected_gain
    return frozenset() if gain is None or not gain.is_time else gain.touched or frozenset()


def _key(advice: Advice) -> tuple[str, str]:
    return advice.rule, advice.recommendation


def list_options(evidence: Evidence, silence: Sequence[str] = (), *, all_advice: bool = False) -> list[Advice]:
    """Choices that every model has: for each, the rule that says most."""
    found = ranked(_found(evidence, silence, is_option=True), all_advice=all_advice)
    if all_advice:
        return found
    best: dict[str | None, Advice] = {}
    for advice in found:
        gain = advice.expected_gain
        if gain is not None and gain.is_time:
            is_worth = _middle(gain) >= LEAST_TIME_OF_OPTION
        else:
            is_worth = gain is None or (gain.amount or 0) >= LEAST_SIZE_OF_OPTION
        if is_worth:
            best.setdefault(RULES[advice.rule].option, advice)
    return list(best.values())


def _found(evidence: Evidence, silence: Sequence[str], *, is_option: bool) -> list[Advice]:
    load_rules()
    check_names(silence)
    wanted = [entry for name, entry in RULES.items() if name not in silence]
    entries = [entry for entry in wanted if (entry.option is not None) == is_option]
    found: list[Advice] = []
    for entry in entries:
        try:
            found += list(entry.find(evidence))
        except Exception as error:  # one rule must not end an analysis that is right
            evidence.failures.append(failure(entry.name, error))
    return [_settled(advice, evidence) for advice in merged(found, evidence.source_of)]


def failure(rule: str, error: Exception) -> str:
    """What the report says about a rule that raised; tests replace it, so that they fail."""
    return f"the advice '{rule}' was not looked for: its rule raised {type(error).__name__}: {error}"


def merged(found: Iterable[Advice], source_of: Callable[[int], str | None] = lambda _: None) -> list[Advice]:
    """One piece of advice for each recommendation of a rule, at the place that gains most; `evidence["places"]` has all
    its places. `source_of`: the line of code that calls an op."""
    groups: dict[tuple[str, str, str | None], list[Advice]] = {}
    for advice in found:
        quantity = advice.expected_gain.quantity if advice.expected_gain else None
        groups.setdefault((*_key(advice), quantity), []).append(advice)
    pieces = []
    for group in groups.values():
        first = max(group, key=lambda advice: advice.expected_gain.middle if advice.expected_gain else 0.0)
        if len(group) == 1:
            pieces.append(first)
            continue
        places = []
        for advice in group:
            gain = advice.expected_gain
            shares = {"low": gain.low, "high": gain.high} if gain else {}
            places.append({**advice.where.member(), "evidence": dict(advice.evidence), **shares})
        gains = [advice.expected_gain for advice in group if advice.expected_gain]
        pieces.append(
            replace(
                first,
                evidence={**first.evidence, "count": len(group), "places": places},
                # What is pasted is what the gain is promised for: the code of every place.
                change=merged_changes(
                    _changes(group, source_of),
                    [advice.where.module or "" for advice in group if advice.change is None],
                ),
                expected_gain=_sum(gains, first.expected_gain),
                confidence=max((advice.confidence for advice in group), key=CONFIDENCES.index),
            )
        )
    return pieces


def _changes(group: Sequence[Advice], source_of: Callable[[int], str | None]) -> list[Patch | SourceEdit | None]:
    """The code of each place. Those that run one line of code are one place to an edit, even without code."""
    if any(isinstance(advice.change, Patch) for advice in group):
        return [advice.change for advice in group]
    found: dict[tuple[object, ...], Patch | SourceEdit | None] = {}
    edits = list({advice.change for advice in group if isinstance(advice.change, SourceEdit)})
    for advice in group:
        lines = tuple(filter(None, map(source_of, advice.where.ops)))
        shared = [edit for edit in edits if advice.change is None and any(map(edit.changes, lines))]
        change = shared[0] if shared else advice.change
        key = (change,) if change is not None else lines or (advice.where,)
        found[key] = change
    return list(found.values())


def _sum(gains: list[Gain], first: Gain | None) -> Gain | None:
    # The largest moment of the run counts for memory: what two places save there does not add up.
    if first is None or first.quantity == "peak_activation_bytes":
        return first
    # Places that touch the same ops, as the products of one loop do, save their time once.
    apart: list[Gain] = []
    taken: set[int] = set()
    for gain in sorted(gains, key=lambda gain: -gain.high):
        own = gain.touched
        # Most places share no op with any other.
        is_alone = own is not None and bool(own) and taken.isdisjoint(own)
        if own is None or is_alone or all(2 * len(own & (other.touched or frozenset())) < len(own) for other in apart):
            apart.append(gain)
            taken |= own or frozenset()
    low, high = sum(gain.low for gain in apart), sum(gain.high for gain in apart)
    every = [gain.touched for gain in apart]
    touched = None if any(ops is None for ops in every) else frozenset[int]().union(*(ops for ops in every if ops))
    return replace(first, low=min(low, 1.0), high=min(high, 1.0), touched=touched)


def _settled(advice: Advice, evidence: Evidence) -> Advice:
    """With its gain held to the time of the ops it touches, and the line of the code that calls them."""
    source, line = _line(evidence, advice.where.source, advice.where.ops)
    where = replace(advice.where, source=source, line=line)
    known = advice.evidence
    if "places" in known:
        at = [_line(evidence, place["source"], place["ops"]) for place in known["places"]]
        sourced = [place | {"source": own[0], "line": own[1]} for place, own in zip(known["places"], at, strict=True)]
        known = {**known, "places": sourced}
    gain, change = advice.expected_gain, advice.change
    if isinstance(change, SourceEdit):
        # No edit where its lines also run where nothing is wrong: a function that several layers share.
        own = {index for ops in (where.ops, *(place["ops"] for place in known.get("places", ()))) for index in ops}
        lines = {(op.source, op.op) for op in evidence.forward if op.index in own}
        if any((op.source, op.op) in lines and op.index not in own for op in evidence.forward):
            change = None
    if isinstance(change, Patch) and evidence.model is not None and any(map(evidence.model.is_bound, change.replaced)):
        change = None
    if isinstance(change, Patch):
        change = change.under_all_names(evidence.modules.values())
    made = _MADE_BY.get(evidence.capture.target.kind)
    if isinstance(change, Patch) and made is not None:
        change = replace(change, note=f"# model: the nn.Module, before {made}\n{change.note}")
    settled = None if gain is None else evidence.settled(gain)
    return replace(advice, where=where, evidence=known, change=change, expected_gain=settled)


def _line(evidence: Evidence, source: str | None, ops: Iterable[int]) -> tuple[str | None, str | None]:
    """The line of code, else the one that calls the first of the ops whose line is known; and its text, of the file in
    its folder: a package may have one of the same name."""
    source = source or next(filter(None, map(evidence.source_of, ops)), None)
    return None if source is None else PurePath(source.replace("\\", "/")).name, evidence.text_at(source)


def ranked(
    found: Iterable[Advice], *, all_advice: bool = False, always: Collection[tuple[str, str]] = ()
) -> list[Advice]:
    """Bugs; then time by the lower end of its range, memory and size; ranges that start at nothing come last, and are
    not said alone. What is in `always` is said however small it is."""
    worth = [advice for advice in found if all_advice or _is_worth_saying(advice) or _key(advice) in always]
    order = sorted(worth, key=_rank)
    first = order[0] if order else None
    is_vague = first is not None and first.kind != "bug" and not (first.expected_gain and first.expected_gain.low)
    return [] if is_vague and not all_advice and not always else order


def _is_worth_saying(advice: Advice) -> bool:
    gain = advice.expected_gain
    if advice.kind == "bug" or gain is None:
        return True
    if advice.confidence == "low" and gain.low == 0:  # perhaps nothing, and hardly anything is known about it
        return False
    if not gain.is_time:
        return _middle(gain) >= LEAST_BYTES
    entry = RULES.get(advice.rule)
    if entry is not None and entry.least_time is not None:
        return _middle(gain) >= entry.least_time
    if gain.basis != "measured" and not (entry is not None and entry.option):
        return _middle(gain) >= LEAST_PREDICTED_TIME
    return _middle(gain) >= (LEAST_TIME if isinstance(advice.change, Patch) else LEAST_TIME_OF_EDIT)


def _middle(gain: Gain) -> float:
    """Ranges are factors around what was predicted, so their middle is the geometric one; a bound has none."""
    return sqrt(gain.low * gain.high) if gain.low else gain.middle


def _rank(advice: Advice) -> tuple[bool, bool, int, float, float, str, str, tuple[int, ...]]:
    gain, where = advice.expected_gain, advice.where
    place = (advice.rule, where.module or where.weight or "", where.ops)
    if gain is None:
        return advice.kind != "bug", True, 0, 0.0, 0.0, *place
    kind = 2 if not gain.is_time else 1 if gain.device == "cuda" else 0
    return advice.kind != "bug", gain.low == 0, kind, -gain.low, -gain.middle, *place


def check_names(silence: Sequence[str]) -> None:
    """Names to silence that no rule has are a mistake of the user's."""
    if not silence:
        return
    load_rules()
    unknown = [name for name in silence if name not in RULES]
    if unknown:
        close = get_close_matches(unknown[0], RULES, n=3)
        meant = f"; did you mean {' or '.join(close)}?" if close else "; docs/advice.md lists the rules"
        raise UsageError(f"no rule '{unknown[0]}'{meant}")


@cache
def load_rules() -> None:
    """Every file in `rules` registers its rules when it is imported."""
    from torchgauge.advise import rules

    for module in iter_modules(rules.__path__):
        import_module(f"{rules.__name__}.{module.name}")
