"""Mixtures of experts: all computed for every token, kept though hardly used, or given too much of the tokens or none.

Without a real run, routing is assumed to be balanced."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.processor import DISPATCH_S
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord, ParamRecord, Row
from torchgauge.facts.experts import Choice, Mixture

# For each expert: a comparison, its rows, their gates, the product with them, the sum back. A wait for the number of
# rows drains the queue of a GPU.
_GATHERING_OPS, _STALL_S = 6, 15e-6
# Tokens from which on products take longer than to read their weights once.
_LEAST_TOKENS = 32
# From here on most of the memory is for experts that a token does not use.
IDLE_SHARE = 0.5
# The busiest expert's tokens over an equal share.
_UNEVEN_RATIO = 2.0
# Weight decay shrinks what no token trains; below this part of its siblings' norm an expert does nothing.
_STARVED_NORM_RATIO = 0.1
# The relative error that pruning whole rows may leave, one of those that the statistics list.
_ERROR = "0.01"
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


@rule("expert-imbalance", family="experts")
def expert_imbalance(evidence: Evidence) -> Iterator[Advice]:
    """Only where the ops ran for real."""
    if evidence.capture.run.mode != "real":
        return
    for mixture in evidence.mixtures:
        loads = _loads(mixture)
        even = sum(loads) / max(mixture.experts, 1)
        if not loads or max(loads) < _UNEVEN_RATIO * even:
            continue
        share = 2 * mixture.macs / max(evidence.totals.flops, 1)
        yield Advice(
            rule="expert-imbalance",
            where=Where(mixture.module, tuple(op.index for op in mixture.ops)),
            evidence={
                "experts": mixture.experts,
                "used": len(loads),
                "most_tokens": round(max(loads)),
                "even_tokens": even,
            },
            recommendation="balance the router (load loss, capacity): one expert gets several times its share",
            change=None,
            expected_gain=Gain(
                "time_s",
                0.0,
                min(share * (1 - even / max(loads)), 1.0),
                "if experts run in parallel, all wait for the busiest one; no gain if they run one after another",
            ),
            risk="this is the load of one input: look at real data before you train",
            confidence="low",
        )


@rule("starved-experts", family="experts")
def starved_experts(evidence: Evidence) -> Iterator[Advice]:
    """By the values: experts whose weights, or whose rows of the router, are next to nothing."""
    for mixture in [] if evidence.is_train else evidence.mixtures:
        starved = max(_faint_experts(evidence, mixture), _faint_routes(evidence, mixture))
        if not 0 < starved < mixture.experts:
            continue
        nbytes = sum(param.spec.nbytes for param in mixture.matrices) * starved / mixture.experts
        share = min(nbytes / max(evidence.totals.param_bytes, 1), 1.0)
        yield Advice(
            rule="starved-experts",
            where=Where(mixture.module),
            evidence={"experts": mixture.experts, "starved": starved, "bytes": nbytes},
            recommendation="remove these experts: their weights, or their rows of the router, are close to zero",
            change=None,
            expected_gain=Gain("param_bytes", 0.0, share, "the bytes of these experts, if none of them is ever chosen"),
            risk="a row of zeros scores 0, which may win: count choices on real data",
            confidence="medium",
        )


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
            stacked = max(stacked, _removable_rows(row, mixture.experts))
        elif row.get("l2") is not None:
            norms.setdefault(param.name.removeprefix(expert), {})[expert] = row["l2"]
    from statistics import median  # as long to import as a small model takes to analyse

    faint = []
    for group in norms.values():
        limit = _STARVED_NORM_RATIO * median(group.values())
        faint.append(sum(norm < limit for norm in group.values()))
    return max((stacked, *faint))


def _faint_routes(evidence: Evidence, mixture: Mixture) -> int:
    """Each row of a router is one expert's; the router is the product whose scores are chosen from."""
    names: set[str] = set()
    for choice in mixture.choices:
        op: OpRecord | None = evidence.capture.ops[choice.index]
        for _ in range(_MOST_BETWEEN):
            op = evidence.flow.source(op) if op is not None else None
            if op is not None and op.cost.macs:
                names.update(op.weights)
                break
    rows = [evidence.weight_rows[name] for name in names if name in evidence.weight_rows]
    routers = [row for row in rows if len(row["shape"]) == 2 and row["shape"][0] == mixture.experts]
    return max((_removable_rows(row, mixture.experts) for row in routers), default=0)


def _removable_rows(row: Row, experts: int) -> int:
    """Rows that can be removed at next to no error."""
    removable = (row.get("pruning") or {}).get("rows") or {}
    return max(round((removable.get(_ERROR) or 0.0) * experts), row.get("dead_rows") or 0)
