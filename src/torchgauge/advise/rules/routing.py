"""Experts that get too much of the tokens, or none: as a real run and the values of the weights show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord, ParamRecord, Row
from torchgauge.facts.experts import Mixture

# The busiest expert's tokens over an equal share.
_UNEVEN = 2.0
# Weight decay shrinks what no token trains; below this part of its siblings' norm an expert does nothing.
_STARVED = 0.1
# The relative error that pruning whole rows may leave, as the statistics have it.
_ERROR = "0.01"
# Softmax, bias and casts between the router's product and the choice.
_MOST_BETWEEN = 6


@rule("expert-imbalance", family="experts")
def expert_imbalance(evidence: Evidence) -> Iterator[Advice]:
    """Only where the ops ran for real: without arithmetic, routing is assumed to be balanced."""
    if evidence.capture.run.mode != "real":
        return
    for mixture in evidence.mixtures:
        loads = _loads(mixture)
        even = sum(loads) / max(mixture.experts, 1)
        if loads and max(loads) >= _UNEVEN * even:
            yield _imbalance(evidence, mixture, loads, even)


@rule("starved-experts", family="experts")
def starved_experts(evidence: Evidence) -> Iterator[Advice]:
    """By the values: experts whose weights, or whose rows of the router, are next to nothing."""
    if evidence.is_train:
        return
    for mixture in evidence.mixtures:
        starved = max(_faint_experts(evidence, mixture), _faint_rows(evidence, mixture))
        if 0 < starved < mixture.experts:
            yield _starvation(evidence, mixture, starved)


def _loads(mixture: Mixture) -> list[float]:
    """Tokens by expert that had any; of stacked weights each product is one expert's."""
    owners = {param.name: _expert_of(param, mixture) for param in mixture.matrices}
    sizes = {param.name: param.spec.numel for param in mixture.matrices}
    loads: dict[str, float] = {}
    for number, op in enumerate(mixture.ops):
        name = next(name for name in op.weights if name in owners)
        expert = owners[name]
        size = sizes[name] if expert is not None else sizes[name] // mixture.experts
        tokens = op.cost.macs / max(size, 1)
        place = str(number) if expert is None else expert
        loads[place] = max(loads.get(place, 0.0), tokens)
    return list(loads.values())


def _expert_of(param: ParamRecord, mixture: Mixture) -> str | None:
    """The path of the expert that holds it; None where all lie in one tensor."""
    is_stacked = len(param.spec.shape) == 3 and param.spec.shape[0] == mixture.experts
    if is_stacked:
        return None
    numbers = [at for at, part in enumerate(param.name.split(".")) if part.isdigit()]
    return ".".join(param.name.split(".")[: numbers[-1] + 1]) if numbers else param.name


def _faint_experts(evidence: Evidence, mixture: Mixture) -> int:
    norms: dict[str, dict[str, float]] = {}
    stacked = 0
    for param in mixture.matrices:
        row = evidence.weight_rows.get(param.name, Row())
        expert = _expert_of(param, mixture)
        if expert is None:
            stacked = max(stacked, _faint_share(row, mixture.experts))
        elif row.get("l2") is not None:
            norms.setdefault(param.name.removeprefix(expert), {})[expert] = row["l2"]
    faint = [_faint(list(group.values())) for group in norms.values()]
    return max((stacked, *faint))


def _faint(norms: Sequence[float]) -> int:
    from statistics import median

    limit = _STARVED * median(norms)
    return sum(norm < limit for norm in norms)


def _faint_rows(evidence: Evidence, mixture: Mixture) -> int:
    """Of the router: its rows are the experts'."""
    choices = [evidence.capture.ops[choice.index] for choice in mixture.choices]
    names = {name for op in choices for name in _router(evidence, op)}
    rows = [evidence.weight_rows[name] for name in names if name in evidence.weight_rows]
    routers = [row for row in rows if len(row["shape"]) == 2 and row["shape"][0] == mixture.experts]
    return max((_faint_share(row, mixture.experts) for row in routers), default=0)


def _router(evidence: Evidence, choice: OpRecord) -> tuple[str, ...]:
    """The weights of the product whose scores are chosen from."""
    op: OpRecord | None = choice
    for _ in range(_MOST_BETWEEN):
        op = evidence.flow.source(op) if op is not None else None
        if op is not None and op.cost.macs:
            return op.weights
    return ()


def _faint_share(row: Row, experts: int) -> int:
    """Rows that can go at next to no error."""
    removable = (row.get("pruning") or {}).get("rows") or {}
    return max(round((removable.get(_ERROR) or 0.0) * experts), row.get("dead_rows") or 0)


def _imbalance(evidence: Evidence, mixture: Mixture, loads: Sequence[float], even: float) -> Advice:
    share = 2 * mixture.macs / max(evidence.totals.flops, 1)
    return Advice(
        rule="expert-imbalance",
        where=Where(mixture.module, tuple(op.index for op in mixture.ops)),
        evidence={
            "experts": mixture.experts,
            "used": len(loads),
            "most_tokens": round(max(loads)),
            "even_tokens": even,
        },
        recommendation="balance the router (a loss on its load, a capacity): one expert gets several times its share",
        change=None,
        expected_gain=Gain(
            "time_s",
            0.0,
            min(share * (1 - even / max(loads)), 1.0),
            "where experts run side by side all wait for the busiest; nothing where they run one after another",
        ),
        risk="these inputs are one sample: look at the load over real data before training anything",
        confidence="low",
    )


def _starvation(evidence: Evidence, mixture: Mixture, starved: int) -> Advice:
    nbytes = sum(param.spec.nbytes for param in mixture.matrices) * starved / mixture.experts
    share = min(nbytes / max(evidence.totals.param_bytes, 1), 1.0)
    return Advice(
        rule="starved-experts",
        where=Where(mixture.module),
        evidence={"experts": mixture.experts, "starved": starved, "bytes": nbytes},
        recommendation="remove these experts: their weights, or their rows of the router, are next to nothing",
        change=None,
        expected_gain=Gain("param_bytes", 0.0, share, "the bytes of these experts, if none of them is ever chosen"),
        risk="a row of zeros still scores 0, which may win: count the choices over real data first",
        confidence="medium",
    )
