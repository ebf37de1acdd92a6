"""Mixtures of experts: all computed for every token, kept though hardly used, or given too much of the tokens or none.

Without a real run, routing is assumed to be balanced."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.processor import DISPATCH_S
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord
from torchgauge.facts.experts import Choice, Mixture

# For each expert: a comparison, its rows, their gates, the product with them, the sum back. A wait for the number of
# rows drains the queue of a GPU.
_GATHERING_OPS, _STALL_S = 6, 15e-6
# Tokens from which on products take longer than to read their weights once.
_LEAST_TOKENS = 32
# From here on most of the memory is for experts that a token does not use.
IDLE_SHARE = 0.5
# Softmax, bias and casts between the router's product and the choice.
_MOST_BETWEEN = 6


@rule("dense-experts", family="experts")
def dense_experts(evidence: Evidence) -> Iterator[Advice]:
    for mixture in evidence.mixtures:
        unchosen = 1 - mixture.share
        saved = sum(evidence.times.seconds.get(op.index, 0.0) for op in mixture.ops) * unchosen
        if not mixture.is_dense or not saved or not any(_is_routed(evidence, choice) for choice in mixture.choices):
            continue
        # Few rows take as long as to read the weights, and together they choose all experts. The modules of a recurrent
        # model read each other's states, chosen or not.
        is_few = mixture.tokens < _LEAST_TOKENS and mixture.tokens * mixture.chosen >= mixture.experts
        if is_few or mixture.computed > 1.5 * mixture.tokens * mixture.experts:
            continue
        if not _is_thrown_away(evidence, mixture) or any(_reads_around(op, mixture) for op in mixture.ops):
            continue
        # Each expert's tokens have to be found, gathered and added back; on a GPU the host waits for their number.
        wait = _STALL_S if evidence.is_cuda else 0.0
        kept = 1 - mixture.experts * (wait + _GATHERING_OPS * DISPATCH_S) / saved
        if kept <= 0:
            continue
        yield Advice(
            rule="dense-experts",
            where=Where(mixture.module, tuple(op.index for op in mixture.ops)),
            evidence={
                "experts": mixture.experts,
                "chosen": mixture.chosen,
                "tokens": mixture.tokens,
                "products_computed": round(mixture.computed),
                "products_needed": mixture.tokens * mixture.chosen,
            },
            recommendation="compute only the experts that a token chose: all run, and the rest is thrown away",
            change=None,
            expected_gain=evidence.share(mixture.ops).gain(
                0.5 * kept * unchosen,
                kept * unchosen,
                "the products of experts that were not chosen, less the gathering of tokens by expert",
            ),
            risk="shapes then depend on data; small batches may be faster as they are",
            confidence="high",
        )


def _is_thrown_away(evidence: Evidence, mixture: Mixture) -> bool:
    """Whether the model neither returns nor keeps results of experts before the choice weighs or picks them, as it does
    where it gives all hypotheses and the best one."""
    behind: set[int | None] = {choice.index for choice in mixture.choices}
    for op in evidence.forward:
        if not behind.isdisjoint(op.producers):
            behind.add(op.index)
    needed = evidence.flow.results.union(evidence.capture.run.kept_ops)
    todo, seen = list(mixture.ops), set[int]()
    while todo:
        op = todo.pop()
        if op.index in needed:
            return False
        unchosen = [user for user in evidence.flow.users(op) if user.index not in behind | seen]
        seen.update(user.index for user in unchosen)
        todo += unchosen
    return True


def _reads_around(op: OpRecord, mixture: Mixture) -> bool:
    """Whether a convolution reads the neighbours of a pixel, and each pixel makes a choice: a few pixels cannot be
    gathered for it."""
    if op.category != "convolution" or max(op.signature.inputs[1].shape[2:], default=1) == 1:
        return False
    return mixture.tokens > op.signature.outputs[0].shape[0]


def _is_routed(evidence: Evidence, choice: Choice) -> bool:
    """Whether a layer computes the scores that are chosen from, or a table has the choices. What the input says, as who
    speaks in a dialogue, picks one of several results, but no token chooses among experts."""
    op = evidence.capture.ops[choice.index]
    near = evidence.dataflow.ancestors(op, _MOST_BETWEEN)
    return choice.alternatives is None or any(each.cost.macs and each.weights for each in near)


@rule("idle-experts", family="experts", option="quantize")
def idle_experts(evidence: Evidence) -> Iterator[Advice]:
    mixtures, totals = [] if evidence.is_train else evidence.mixtures, evidence.totals
    unused = sum((1 - mixture.share) * param.spec.nbytes for mixture in mixtures for param in mixture.params)
    idle = unused / max(totals.param_bytes or 0, 1)
    if idle < IDLE_SHARE:
        return
    first = mixtures[0]
    yield Advice(
        rule="idle-experts",
        where=Where(first.module),
        evidence={
            "params": totals.params,
            "active_params": totals.active_params,
            "experts": first.experts,
            "chosen": first.chosen,
            "layers": len(mixtures),
            "idle_share_of_bytes": idle,
        },
        recommendation="store the experts in fewer bits, or on several devices: they cost memory, not arithmetic",
        change=None,
        expected_gain=Gain(
            "param_bytes",
            min(0.5 * idle, 1.0),
            min(idle, 1.0),
            "half of the idle experts' bytes (8 bits for 16) to all of them (elsewhere)",
        ),
        risk="fetching experts on demand adds latency; balanced routing is assumed",
        confidence="low",
    )
