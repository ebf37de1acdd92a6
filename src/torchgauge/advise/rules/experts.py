"""Mixtures of experts: all computed for every token, or kept though hardly used. Routing is taken to be balanced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.op_time import DISPATCH_S
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts.experts import Mixture

# For each expert: a comparison, its rows, their gates, the product with them, the sum back. A wait for the number of
# rows drains the queue of a GPU.
_GATHERING_OPS, _STALL_S = 6, 15e-6
# From here on most of the memory is for experts that a token does not use.
IDLE_SHARE = 0.5


@rule("dense-experts", family="experts")
def dense_experts(evidence: Evidence) -> Iterator[Advice]:
    for mixture in evidence.mixtures:
        if mixture.is_dense and (kept := _kept_after_gathering(evidence, mixture)) > 0:
            yield _dense(evidence, mixture, kept)


@rule("idle-experts", family="experts", option="quantize")
def idle_experts(evidence: Evidence) -> Iterator[Advice]:
    """By module: the bytes of the experts that a token does not use."""
    whole = max(evidence.totals.param_bytes or 0, 1)
    found = [] if evidence.is_train else evidence.mixtures
    idle = sum(map(_idle_bytes, found)) / whole
    if idle >= IDLE_SHARE:
        yield _idle(evidence, found, idle)


def _idle_bytes(mixture: Mixture) -> float:
    return sum(param.spec.nbytes for param in mixture.params) * (1 - mixture.share)


def _kept_after_gathering(evidence: Evidence, mixture: Mixture) -> float:
    """Of the time that unchosen experts take, the part that is left when each expert's tokens are looked for, gathered
    and added back: on a GPU the host waits for their number."""
    times = evidence.times
    saved = sum(times.seconds.get(op.index, 0.0) for op in mixture.ops) * (1 - mixture.share)
    wait = _STALL_S if evidence.is_cuda else 0.0
    gathering = mixture.experts * (wait + _GATHERING_OPS * DISPATCH_S)
    return 1 - gathering / saved if saved else 0.0


def _dense(evidence: Evidence, mixture: Mixture, kept: float) -> Advice:
    return Advice(
        rule="dense-experts",
        where=Where(mixture.module, tuple(op.index for op in mixture.ops)),
        evidence={
            "experts": mixture.experts,
            "chosen": mixture.chosen,
            "tokens": mixture.tokens,
            "products_computed": round(mixture.computed),
            "products_needed": mixture.tokens * mixture.chosen,
        },
        recommendation="compute for each token only the experts it chose: all are computed, and most thrown away",
        change=None,
        expected_gain=evidence.share(mixture.ops).gain(
            0.5 * kept * (1 - mixture.share),
            kept * (1 - mixture.share),
            "the products of experts that were not chosen, less the gathering of tokens by expert",
        ),
        risk="gathering tokens by expert makes shapes depend on data: small batches may be faster dense",
        confidence="high",
    )


def _idle(evidence: Evidence, found: Sequence[Mixture], idle: float) -> Advice:
    totals, first = evidence.totals, found[0]
    return Advice(
        rule="idle-experts",
        where=Where(first.module),
        evidence={
            "params": totals.params,
            "active_params": totals.active_params,
            "experts": first.experts,
            "chosen": first.chosen,
            "layers": len(found),
            "idle_share_of_bytes": idle,
        },
        recommendation="hold the experts in fewer bits, or on several devices: they cost memory, not arithmetic",
        change=None,
        expected_gain=Gain(
            "param_bytes",
            min(0.5 * idle, 1.0),
            min(idle, 1.0),
            "half of the idle experts' bytes (8 bits for 16) to all of them (elsewhere)",
        ),
        risk="routing is assumed to be balanced; experts fetched on demand add latency whenever the choice changes",
        confidence="low",
    )
