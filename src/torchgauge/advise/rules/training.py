"""What a training step keeps in memory besides activations: gradients, and the optimizer's state."""

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
    state = sum(op.signature.activation_bytes for op in _allocations(evidence))
    share = state / max(evidence.totals.peak_activation_bytes or 0, 1)
    if evidence.is_train and share >= STATE_SHARE:
        yield Advice(
            rule="optimizer-state",
            where=Where(module="", ops=tuple(op.index for op in _allocations(evidence))[:10]),
            evidence={"state_bytes": state, "peak_bytes": evidence.totals.peak_activation_bytes, "share": share},
            recommendation="keep the optimizer's state in 8 bits, or factored: it is most of what training holds",
            change=Patch("from torchao.optim import AdamW8bit\noptimizer = AdamW8bit(model.parameters())"),
            expected_gain=Gain(
                "peak_activation_bytes",
                min(0.5 * share, 1.0),
                min(0.75 * share, 1.0),
                "the state in 16 bits to the state in 8 bits",
            ),
            risk="the analysis takes an AdamW step, another optimizer keeps less; watch the loss over the first steps",
            confidence="medium",
        )


@rule("gradient-memory", family="training")
def gradient_memory(evidence: Evidence) -> Iterator[Advice]:
    gradients = _gradients(evidence)
    peak = evidence.totals.peak_activation_bytes or 0
    if evidence.is_train and gradients and sum(gradients) >= GRADIENT_SHARE * peak and _peaks_in_optimizer(evidence):
        saved = (sum(gradients) - max(gradients)) / peak
        yield Advice(
            rule="gradient-memory",
            where=Where(module=""),
            evidence={"gradient_bytes": sum(gradients), "largest_bytes": max(gradients), "peak_bytes": peak},
            recommendation="step the optimizer for each parameter as its gradient arrives, and free that at once",
            change=Patch(
                "optimizers = {p: torch.optim.AdamW([p]) for p in model.parameters()}\n"
                "def step(p):\n    optimizers[p].step()\n    optimizers[p].zero_grad()\n"
                "handles = [p.register_post_accumulate_grad_hook(step) for p in optimizers]"
            ),
            expected_gain=Gain(
                "peak_activation_bytes",
                0.5 * saved,
                saved,
                "all gradients but the largest",
            ),
            risk="gradients cannot be clipped by their common norm, nor accumulated over several batches",
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
        recommendation="freeze these few parameters too: for them alone backward goes through every frozen layer",
        change=Patch(
            "model.get_parameter(name).requires_grad_(False)", ("name",), tuple((name,) for name in sorted(early))
        ),
        expected_gain=evidence.share(backward).gain(0.8, 1.0, "the backward pass of the frozen layers"),
        risk="none, unless these parameters are meant to be trained",
        confidence="medium",
    )


@rule("never-trained", family="training")
def never_trained(evidence: Evidence) -> Iterator[Advice]:
    """Parameters that the loss depends on and that get no gradient: something detaches what they compute."""
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
        # A teacher or the target of a moving average is cut off on purpose.
        is_copy = _is_copy_of_trained(evidence, place, names, stepped)
        share = min(max(held.get(place, 0), 0) / peak, 1.0)
        kept = Gain("peak_activation_bytes", 0.5 * share, share, "what its forward leaves alive for a backward pass")
        yield Advice(
            rule="never-trained",
            where=Where(place, tuple(sorted({cut[name].index for name in names})), None, evidence.call_line(place)),
            evidence={"parameters": len(names), "bytes": sum(params[name].spec.nbytes for name in names)},
            recommendation="run this copy under torch.no_grad(): no gradient reaches it, and its activations are kept"
            if is_copy
            else "no gradient reaches these parameters: freeze them if that is meant, else look for a detach() behind",
            change=Patch("model.get_submodule(path).requires_grad_(False)", ("path",), ((place,),)),
            expected_gain=kept if is_copy else None,
            risk="none, unless other losses train them",
            confidence="high",
            kind="gain" if is_copy else "bug",
        )


def _is_copy_of_trained(evidence: Evidence, place: str, names: list[str], stepped: set[str]) -> bool:
    """Whether another module has parameters of the same names and shapes, which are trained."""
    params = evidence.params
    own = {(name.removeprefix(f"{place}."), params[name].spec.shape) for name in names}
    ends = {name.removesuffix(f".{end}") for name in stepped for end, _ in own if name.endswith(f".{end}")}
    return any(
        all((other := params.get(f"{module}.{end}")) is not None and other.spec.shape == shape for end, shape in own)
        for module in ends - {place}
    )


def _allocations(evidence: Evidence) -> list[OpRecord]:
    ops = evidence.capture.ops
    return [op for op in ops if op.phase == "optimizer" and op.category == "allocation" and op.weights]


def _gradients(evidence: Evidence) -> list[int]:
    """Of the parameters that the optimizer stepped."""
    stepped = {name for op in evidence.capture.ops if op.phase == "optimizer" for name in op.weights}
    return [param.spec.nbytes for name, param in evidence.params.items() if name in stepped]


def _peaks_in_optimizer(evidence: Evidence) -> bool:
    ops = evidence.capture.ops
    return bool(ops) and max(ops, key=lambda op: op.live_bytes).phase == "optimizer"
