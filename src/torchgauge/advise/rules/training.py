"""What a training step keeps in memory besides activations: gradients, and the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord

# AdamW keeps two numbers per parameter: where parameters dominate, half of the peak; gradients are a quarter.
STATE_SHARE, GRADIENT_SHARE = 0.4, 0.2


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
            code="from torchao.optim import AdamW8bit; optimizer = AdamW8bit(model.parameters())",
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
            code="optimizers = {p: torch.optim.AdamW([p]) for p in model.parameters()}\n"
            "def step(p): optimizers[p].step(); optimizers[p].zero_grad()\n"
            "handles = [p.register_post_accumulate_grad_hook(step) for p in optimizers]",
            expected_gain=Gain(
                "peak_activation_bytes",
                0.5 * saved,
                saved,
                "all gradients but the largest",
            ),
            risk="gradients cannot be clipped by their common norm, nor accumulated over several batches",
            confidence="medium",
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
