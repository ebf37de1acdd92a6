"""What a training step keeps in memory in addition to activations: gradients, and the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.checkpointing import held_by_modules
from torchgauge.facts import OpRecord

# AdamW keeps two numbers per parameter: where parameters dominate, half of the peak; gradients are a quarter.
STATE_SHARE, GRADIENT_SHARE = 0.4, 0.2
# Of the forward's arithmetic, what must be frozen in one piece; of the parameters trained behind it, those before it.
_LEAST_FROZEN, _FEW_TRAINED = 0.3, 0.1


@rule("optimizer-state", family="training")
def optimizer_state(evidence: Evidence) -> Iterator[Advice]:
    ops = evidence.capture.ops
    allocations = [op for op in ops if op.phase == "optimizer" and op.category == "allocation" and op.weights]
    state = sum(op.signature.activation_bytes for op in allocations)
    share = state / max(evidence.totals.peak_activation_bytes or 0, 1)
    if evidence.is_train and share >= STATE_SHARE:
        yield Advice(
            rule="optimizer-state",
            where=Where(module="", ops=tuple(op.index for op in allocations)[:10]),
            evidence={"state_bytes": state, "peak_bytes": evidence.totals.peak_activation_bytes, "share": share},
            recommendation="keep the optimizer's state in 8 bits, or factored: it is most of the training memory",
            change=Patch("from torchao.optim import AdamW8bit\noptimizer = AdamW8bit(model.parameters())"),
            expected_gain=Gain(
                "peak_activation_bytes",
                min(0.5 * share, 1.0),
                min(0.75 * share, 1.0),
                "the state in 16 bits to the state in 8 bits",
            ),
            risk="watch the loss at the start; optimizers other than AdamW may keep less",
            confidence="medium",
        )


@rule("gradient-memory", family="training")
def gradient_memory(evidence: Evidence) -> Iterator[Advice]:
    ops, peak = evidence.capture.ops, evidence.totals.peak_activation_bytes or 0
    stepped = {name for op in ops if op.phase == "optimizer" for name in op.weights}
    gradients = [param.spec.nbytes for name, param in evidence.params.items() if name in stepped]
    peaks_in_optimizer = bool(ops) and max(ops, key=lambda op: op.live_bytes).phase == "optimizer"
    if evidence.is_train and gradients and sum(gradients) >= GRADIENT_SHARE * peak and peaks_in_optimizer:
        saved = (sum(gradients) - max(gradients)) / peak
        yield Advice(
            rule="gradient-memory",
            where=Where(module=""),
            evidence={"gradient_bytes": sum(gradients), "largest_bytes": max(gradients), "peak_bytes": peak},
            recommendation="step the optimizer for each parameter as its gradient arrives, and free the gradient",
            change=Patch(
                "optimizers = {p: torch.optim.AdamW([p]) for p in model.parameters()}\n"
                "def step(p):\n    optimizers[p].step()\n    optimizers[p].zero_grad()\n"
                "handles = [p.register_post_accumulate_grad_hook(step) for p in optimizers]"
            ),
            expected_gain=Gain("peak_activation_bytes", 0.5 * saved, saved, "all gradients except the largest"),
            risk="no clipping by the global norm, no accumulation over several batches",
            confidence="medium",
        )


@rule("frozen-in-graph", family="training")
def frozen_in_graph(evidence: Evidence) -> Iterator[Advice]:
    """Frozen layers between a few trained parameters before them and the trained layers behind: for the few, the
    backward pass goes through all of them."""
    if not evidence.is_train or not evidence.flow.steps:
        return
    trained = {name: param for name, param in evidence.params.items() if param.trainable and not param.is_buffer}
    users = [op for op in evidence.flow.steps if op.cost.macs or any(name in trained for name in op.weights)]
    flops = sum(op.cost.flops for op in users)
    at = [n for n, op in enumerate(users) if any(name in trained for name in op.weights)]
    gaps = [users[a + 1 : b] for a, b in pairwise(at)]
    gap = max(gaps, key=lambda ops: sum(op.cost.flops for op in ops), default=[])
    if sum(op.cost.flops for op in gap) < _LEAST_FROZEN * flops:
        return
    early = {name for op in users if op.index < gap[0].index for name in op.weights if name in trained}
    late = {name for op in users if op.index > gap[-1].index for name in op.weights if name in trained} - early
    few, many = (sum(trained[name].spec.numel for name in names) for names in (early, late))
    modules = {op.module for op in gap}
    backward = [op for op in evidence.capture.ops if op.phase == "backward" and op.module in modules]
    if not backward or few > _FEW_TRAINED * many:
        return
    yield Advice(
        rule="frozen-in-graph",
        where=Where(gap[0].module, tuple(op.index for op in backward), min(early)),
        evidence={"trained_before": sorted(early)[:8], "frozen_ops": len(gap), "backward_ops": len(backward)},
        recommendation="freeze these few parameters too: then backward need not cross the frozen layers",
        change=Patch(
            "model.get_parameter(name).requires_grad_(False)", ("name",), tuple((name,) for name in sorted(early))
        ),
        expected_gain=evidence.share(backward).gain(0.8, 1.0, "the backward pass of the frozen layers"),
        risk="none, unless these parameters are meant to be trained",
        confidence="medium",
    )


@rule("never-trained", family="training")
def never_trained(evidence: Evidence) -> Iterator[Advice]:
    """Parameters that forward uses and that get no gradient: an op or `no_grad` stops it behind them."""
    ops = evidence.capture.ops
    stepped = {name for op in ops if op.phase == "optimizer" for name in op.weights}
    if not evidence.is_train or not stepped:
        return
    params = evidence.params
    cut = {
        w: op for op in evidence.forward for w in op.weights if w in params and params[w].trainable and w not in stepped
    }
    # The largest modules of which nothing is trained.
    places: dict[str, list[str]] = {}
    for name in cut:
        place, path = params[name].module, params[name].module
        while path:
            if any(other.startswith(f"{path}.") for other in stepped):
                break
            place, path = path, path.rpartition(".")[0]
        places.setdefault(place, []).append(name)
    held, peak = held_by_modules(evidence)[0], evidence.totals.peak_activation_bytes or 1
    for place, names in places.items():
        # The target of a moving average is cut off on purpose.
        is_copy = _is_copy_of_trained(evidence, place, names, stepped)
        share = min(max(held.get(place, 0), 0) / peak, 1.0)
        kept = Gain("peak_activation_bytes", 0.5 * share, share, "what its forward pass keeps for backward")
        stops = [] if is_copy else _gradient_stops(evidence, frozenset(names))
        # To freeze what should be trained would hide the bug: the code is for copies alone.
        freeze = Patch("model.get_submodule(path).requires_grad_(False)", ("path",), ((place,),)) if is_copy else None
        yield Advice(
            rule="never-trained",
            where=Where(place, tuple(sorted({cut[name].index for name in names})), None, evidence.call_line(place)),
            evidence={
                "parameters": len(names),
                "bytes": sum(params[name].spec.nbytes for name in names),
                **({"stopped_by": sorted({op.op for op in stops})} if stops else {}),
            },
            recommendation="run this copy under torch.no_grad(): no gradient reaches it, yet its activations are kept"
            if is_copy
            else _why_untrained(evidence, stops),
            change=freeze,
            expected_gain=kept if is_copy else None,
            risk="none, unless other losses train them",
            confidence="high",
            kind="gain" if is_copy else "bug",
        )


def _is_copy_of_trained(evidence: Evidence, place: str, names: list[str], stepped: set[str]) -> bool:
    """Whether it is of the class of a trained module, with parameters of the same names and shapes, and either holds
    the same values (made by deepcopy or load_state_dict) or is updated from the other's in forward. Layers of one shape
    alone are not copies."""
    params, modules = evidence.params, evidence.modules
    own = {name.removeprefix(f"{place}."): params[name].spec.shape for name in names}
    ends = {name.removesuffix(f".{end}") for name in stepped for end in own if name.endswith(f".{end}")}
    for module in sorted(ends - {place}):
        pairs = [(f"{place}.{end}", f"{module}.{end}") for end in own]
        if any(b not in params or params[b].spec.shape != params[a].spec.shape for a, b in pairs):
            continue
        if place not in modules or module not in modules or modules[place].type != modules[module].type:
            continue
        is_equal = evidence.model is not None and evidence.model.are_equal(pairs)
        is_updated = all(
            any(op.op.endswith("_") and {a, b} <= set(op.weights) for op in evidence.weight_users.get(a, ()))
            for a, b in pairs
        )
        if is_equal or is_updated:
            return True
    return False


def _gradient_stops(evidence: Evidence, names: frozenset[str]) -> list[OpRecord]:
    """The ops behind these parameters that no gradient passes: those that make whole numbers or booleans of what the
    parameters compute, or `detach`. Empty where none is seen, as under `no_grad`."""
    carried: set[int] = set()
    whole: dict[int, OpRecord] = {}
    detached: dict[int, OpRecord] = {}
    by_index = {op.index: op for op in evidence.forward}
    for op in evidence.forward:
        reads = list(zip(op.signature.inputs, op.producers, strict=False))
        # Of max, sort and topk the indices may be what is read.
        whole.update(
            (source, by_index[source])
            for spec, source in reads
            if source is not None and source in carried and not spec.is_arithmetic
        )
        is_behind = any(source in carried and spec.is_arithmetic for spec, source in reads)
        if not is_behind and names.isdisjoint(op.weights):
            continue
        if op.op == "aten::detach":
            # Autograd detaches what it keeps for the backward pass, as the result of a tanh: the code must say it.
            place = evidence.code_at(op)
            if place is not None and place[0].calls(place[1], "detach", "detach_"):
                detached[op.index] = op
        elif any(spec.is_arithmetic for spec in op.signature.outputs):
            carried.add(op.index)
        else:
            whole[op.index] = op
    # Views are looked through, `detach` among them: what it cuts still seems to reach the result.
    reaches = not carried.isdisjoint(evidence.flow.results)
    return list((detached if reaches else whole).values())


_COMPARISONS = {f"aten::{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge", "isclose")}


def _why_untrained(evidence: Evidence, stops: list[OpRecord]) -> str:
    if not stops:
        return (
            "no gradient reaches these parameters: the loss does not depend on them, or no_grad(), detach() or .data "
            "cuts them off"
        )
    first = stops[0]
    name = first.op.removeprefix("aten::")
    if first.op in _COMPARISONS:
        name = "a comparison"
    elif first.op == "aten::_to_copy":
        name = f"the cast to {first.signature.outputs[0].dtype}"
    line = evidence.line_of(first.index)
    at = name if line is None else f"{name} ({line})"
    remedy = "remove it" if first.op == "aten::detach" else "make it differentiable"
    return f"no gradient passes {at}: {remedy} or freeze these"
