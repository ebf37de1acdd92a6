"""Arithmetic in float32 on a device whose tensor cores are faster in 16 bits, and layers that wait for memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.least_time import LeastTime
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.hardware import Peaks
from torchgauge.records import OpRecord

_AUTOCAST = ("matmul", "convolution", "attention", "recurrent")
LEAST_GAIN = 0.2
LEAST_REACHED = 1 / 3
# Layers that reach half of the bandwidth wait for memory, and for nothing else.
NEAR_ROOF, MEMORY_SHARE = 0.5, 0.5


@rule("autocast-bf16", family="precision")
def autocast_bf16(evidence: Evidence) -> Iterator[Advice]:
    peaks, machine = evidence.peaks, evidence.machine
    if not evidence.is_cuda or peaks is None or not peaks.rate("bfloat16"):
        return
    ops = [op for op in evidence.capture.ops if op.phase != "optimizer" and _is_castable(op)]
    # With TF32 there is less to gain; where nobody knows whether it is on, that is the range.
    known = machine.matmul_tf32
    assumed = (True, False) if known is None else (known,)
    limits = [LeastTime(peaks, tf32, machine.convolution_tf32 is not False) for tf32 in assumed]
    gaining = [*ops, *_following(evidence, ops)]
    savings = [_saving(gaining, evidence.capture.ops, least) for least in limits]
    if max(savings) >= LEAST_GAIN:
        yield _autocast(evidence, ops, peaks, (LEAST_REACHED * min(savings), max(savings)))


@rule("memory-bound-layers", family="precision")
def memory_bound_layers(evidence: Evidence) -> Iterator[Advice]:
    """Measured: ops that reach the bandwidth, in float32."""
    rows = evidence.capture.measured.ops if evidence.capture.measured else {}
    if not evidence.is_cuda or not rows:
        return
    waiting = [
        op
        for op in evidence.forward
        if op.signature.dtype == "float32"
        and (row := rows.get(op.index, {})).get("bound") == "memory"
        and (row.get("roof_share") or 0.0) >= NEAR_ROOF
    ]
    share = evidence.share(waiting)
    if share.quantity == "time_s" and share.value >= MEMORY_SHARE:
        yield _halve(waiting, share.value, share.gain(0.25, 0.5, "half of the bytes at the same bandwidth"))


def _is_castable(op: OpRecord) -> bool:
    return op.category in _AUTOCAST and op.cost.macs > 0 and op.signature.dtype == "float32"


def _following(evidence: Evidence, ops: Iterable[OpRecord]) -> list[OpRecord]:
    """Ops of the forward pass that take the type of what they read, where that is 16 bits wide then."""
    narrow = {op.index for op in ops}
    found = []
    for op in evidence.flow.of_category("activation", "elementwise", "normalization", "pooling"):
        follows = op.category != "normalization" or "batch_norm" in op.op
        sources = [source for source in op.producers if source is not None]
        if follows and sources and op.signature.dtype == "float32" and all(source in narrow for source in sources):
            narrow.add(op.index)
            found.append(op)
    return found


def _saving(ops: Iterable[OpRecord], every: Iterable[OpRecord], least: LeastTime) -> float:
    """Of the least time of all ops, the share that 16 bits take away from these."""
    whole = least.whole(every)
    saved = sum(max(least.of(op) - least.in_bfloat16(op), 0.0) for op in ops)
    return min(saved / whole, 1.0) if whole else 0.0


def _autocast(evidence: Evidence, ops: list[OpRecord], peaks: Peaks, gain: tuple[float, float]) -> Advice:
    return Advice(
        rule="autocast-bf16",
        where=Where("", tuple(op.index for op in ops)),
        evidence={
            "float32_ops": len(ops),
            "float32_macs_share": sum(op.cost.macs for op in ops) / max(evidence.totals.macs, 1),
            "device": peaks.name,
            "float32_flops_per_s": peaks.rate("float32"),
            "bfloat16_flops_per_s": peaks.rate("bfloat16"),
        },
        recommendation="Run matrix products and convolutions in bfloat16: this device's tensor cores are faster there.",
        code='with torch.autocast("cuda", dtype=torch.bfloat16): output = model(*inputs)',
        expected_gain=evidence.kernel_gain(
            *gain,
            "roofline: these ops and what follows their type in float32, with TF32 if it may be on, and in bfloat16; "
            "a third of it at least, by judgement: few models reach the roof",
        ),
        risk="Eight bits of mantissa: compare the outputs. Models bound by launches gain nothing.",
        confidence="low" if evidence.waits_for_host else "medium",
    )


def _halve(ops: list[OpRecord], share: float, gain: Gain) -> Advice:
    return Advice(
        rule="memory-bound-layers",
        where=Where(ops[0].module, tuple(op.index for op in ops)),
        evidence={"ops": len(ops), "share_of_op_time": share, "bytes_moved": sum(map(moved, ops))},
        recommendation="Hold activations and weights in 16 bits: these ops run at the bandwidth of the memory.",
        code="model = model.to(torch.bfloat16); "
        "inputs = [x.to(torch.bfloat16) if x.is_floating_point() else x for x in inputs]",
        expected_gain=gain,
        risk="Unlike autocast this also runs norms and sums in 16 bits: compare the outputs.",
        confidence="medium",
    )
