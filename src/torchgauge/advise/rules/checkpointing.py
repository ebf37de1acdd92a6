"""Activations that training keeps for the backward pass, and could compute again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import ModuleRecord, tensor_specs

# Recomputing costs a third more arithmetic: less saved does not pay for it.
LEAST_SAVING = 0.25
CHECKPOINT_IMPORTS = "from functools import partial\nfrom torch.utils.checkpoint import checkpoint\n"
CHECKPOINT = """\
block = model.get_submodule(path)
block.forward = partial(checkpoint, block.forward, use_reentrant=False)
"""


@dataclass(frozen=True, slots=True)
class Block:
    """One of several modules alike; `held` is what it leaves alive for the backward pass, with its output."""

    record: ModuleRecord
    held: int
    flops: int

    @property
    def output_bytes(self) -> int:
        return min(sum(spec.nbytes for spec in tensor_specs(self.record.outputs)), self.held)


@rule("activation-checkpointing", family="training")
def activation_checkpointing(evidence: Evidence) -> Iterator[Advice]:
    if not evidence.is_train or not evidence.forward:
        return
    totals = evidence.totals
    blocks = max(_groups(evidence), key=lambda group: _saved(group, evidence), default=[])
    saved = _saved(blocks, evidence)
    if saved < LEAST_SAVING * totals.peak_activation_bytes:
        return
    share = saved / totals.peak_activation_bytes
    yield Advice(
        rule="activation-checkpointing",
        where=Where(module=blocks[0].record.parent or ""),
        evidence={
            "blocks": len(blocks),
            "type": blocks[0].record.type,
            "held_bytes": sum(block.held for block in blocks),
            "output_bytes": sum(block.output_bytes for block in blocks),
            "peak_bytes": totals.peak_activation_bytes,
            "param_bytes": totals.param_bytes,
            "recomputed_flops_share": sum(block.flops for block in blocks) / max(totals.flops, 1),
        },
        recommendation="checkpoint these blocks: keep only their outputs and compute the rest again when needed",
        change=Patch(CHECKPOINT, ("path",), tuple((block.record.path,) for block in blocks), CHECKPOINT_IMPORTS),
        expected_gain=Gain(
            "peak_activation_bytes", 0.5 * share, share, "everything except the outputs and the inside of one block"
        ),
        risk="the forward pass of these blocks runs twice",
        confidence="high",
    )


def _saved(blocks: Sequence[Block], evidence: Evidence) -> int:
    """Only the outputs stay, and the inside of one block at a time; the optimizer's step has a separate peak."""
    kept = sum(block.output_bytes for block in blocks)
    inside = max((block.held - block.output_bytes for block in blocks), default=0)
    saved = sum(block.held for block in blocks) - kept - inside
    floor = max((op.live_bytes for op in evidence.capture.ops if op.phase == "optimizer"), default=0)
    return min(saved, evidence.totals.peak_activation_bytes - floor)


def _groups(evidence: Evidence) -> Iterator[list[Block]]:
    """Siblings of one class that have children: computing a single layer again saves nothing."""
    held, flops = held_by_modules(evidence)
    # Frozen blocks that no gradient passes keep nothing for the backward pass.
    differentiated = set()
    for op in evidence.capture.ops:
        path = op.module if op.phase == "backward" else ""
        while path and path not in differentiated:
            differentiated.add(path)
            path = path.rpartition(".")[0]
    parents = {record.parent for record in evidence.capture.modules}
    groups: dict[tuple[str | None, str], list[Block]] = {}
    for record in evidence.capture.modules:
        # A list whose members are called one by one has no forward to checkpoint.
        if not record.calls:
            continue
        if record.path in held and record.path in parents and record.path in differentiated and record.path:
            block = Block(record, max(held[record.path], 0), flops[record.path])
            groups.setdefault((record.parent, record.type), []).append(block)
    yield from (group for group in groups.values() if len(group) > 1)


def held_by_modules(evidence: Evidence) -> tuple[dict[str, int], dict[str, int]]:
    """By module, how much more is alive after its ops than before them, and their flops."""
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    flops: dict[str, int] = {}
    live = evidence.capture.input_bytes
    for op in evidence.forward:
        path = op.module
        while path:
            before.setdefault(path, live)
            after[path] = op.live_bytes
            flops[path] = flops.get(path, 0) + op.cost.flops
            path = path.rpartition(".")[0]
        live = op.live_bytes
    return {path: after[path] - before[path] for path in before}, flops
