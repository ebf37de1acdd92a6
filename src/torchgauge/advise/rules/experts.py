"""Mixtures of experts: all computed for every token, or kept though hardly used. Routing is taken to be balanced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.experts import Routing, expert_params, routings
from torchgauge.records import OpRecord, ParamRecord

# From here on most of the memory is for experts that a token does not use.
IDLE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Mixture:
    routing: Routing
    tokens: int
    matrices: tuple[ParamRecord, ...]
    ops: tuple[OpRecord, ...]

    @property
    def macs(self) -> int:
        return sum(op.cost.macs for op in self.ops)

    @property
    def computed(self) -> float:
        """Pairs of a token and an expert whose product is computed."""
        return self.macs * self.routing.experts / max(sum(param.spec.numel for param in self.matrices), 1)


@rule("dense-experts", family="experts")
def dense_experts(evidence: Evidence) -> Iterator[Advice]:
    for mixture in mixtures(evidence):
        routing = mixture.routing
        if mixture.macs and mixture.computed > 0.99 * mixture.tokens * routing.experts:
            yield _dense(evidence, mixture)


@rule("idle-experts", family="experts")
def idle_experts(evidence: Evidence) -> Iterator[Advice]:
    """By module: the bytes of the experts that a token does not use."""
    whole = max(evidence.totals.param_bytes or 0, 1)
    found = list(mixtures(evidence)) if evidence.capture.has_code and not evidence.is_train else []
    idle = sum(map(_idle_bytes, found)) / whole
    if idle >= IDLE_SHARE:
        yield _idle(evidence, found, idle)


def mixtures(evidence: Evidence) -> Iterator[Mixture]:
    for routing in routings(evidence.capture):
        params = [param for param in expert_params(evidence.capture, routing) if len(param.spec.shape) > 1]
        names = {param.name for param in params}
        ops = tuple(op for op in evidence.forward if op.cost.macs and names & set(op.weights))
        if params:
            yield Mixture(routing, _tokens(evidence, routing), tuple(params), ops)


def _tokens(evidence: Evidence, routing: Routing) -> int:
    routers = (op for op in evidence.forward if op.op == "aten::topk" and op.module == routing.module)
    return next(op.signature.inputs[0].numel for op in routers) // routing.experts


def _idle_bytes(mixture: Mixture) -> float:
    routing = mixture.routing
    return sum(param.spec.nbytes for param in mixture.matrices) * (1 - routing.chosen / routing.experts)


def _dense(evidence: Evidence, mixture: Mixture) -> Advice:
    routing = mixture.routing
    share = 2 * mixture.macs / max(evidence.totals.flops, 1) * (1 - routing.chosen / routing.experts)
    return Advice(
        rule="dense-experts",
        where=Where(routing.module, tuple(op.index for op in mixture.ops)),
        evidence={
            "experts": routing.experts,
            "chosen": routing.chosen,
            "tokens": mixture.tokens,
            "products_computed": round(mixture.computed),
            "products_needed": mixture.tokens * routing.chosen,
        },
        recommendation="compute for each token only the experts it chose: all are computed, and most thrown away",
        code="rows = (chosen == n).any(-1); out[rows] += gates[rows, n, None] * experts[n](x[rows])",
        expected_gain=Gain(
            "flops",
            0.5 * share,
            min(share, 1.0),
            "the products of experts not chosen; half of it at least, by judgement: gathering takes some back",
        ),
        risk="gathering tokens by expert makes shapes depend on data: small batches may be faster dense",
        confidence="high",
    )


def _idle(evidence: Evidence, found: list[Mixture], idle: float) -> Advice:
    totals, routing = evidence.totals, found[0].routing
    return Advice(
        rule="idle-experts",
        where=Where(routing.module),
        evidence={
            "params": totals.params,
            "active_params": totals.active_params,
            "experts": routing.experts,
            "chosen": routing.chosen,
            "layers": len(found),
            "idle_share_of_bytes": idle,
        },
        recommendation="hold the experts in fewer bits, or on several devices: they cost memory, not arithmetic",
        code=None,
        expected_gain=Gain(
            "param_bytes",
            min(0.5 * idle, 1.0),
            min(idle, 1.0),
            "half of the idle experts' bytes (8 bits for 16) to all of them (elsewhere)",
        ),
        risk="routing is assumed to be balanced; experts fetched on demand add latency whenever the choice changes",
        confidence="low",
    )
