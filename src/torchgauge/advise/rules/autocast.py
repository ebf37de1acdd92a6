"""Arithmetic in float32 on a device whose tensor cores are faster in 16 bits, and layers that wait for memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import TENSOR_CORES, Evidence, moved
from torchgauge.advise.op_time import LeastTime
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord
from torchgauge.hardware import Peaks

LEAST_GAIN = 0.2
LEAST_REACHED = 1 / 3
# Layers that reach half of the bandwidth wait for memory, and for nothing else.
NEAR_ROOF, MEMORY_SHARE = 0.5, 0.5
_WHOLE = (
    "model = model.to(torch.bfloat16); inputs = [x.to(torch.bfloat16) if x.is_floating_point() else x for x in inputs]"
)
_WHOLE_RISK = "norms and sums also run in 16 bits, unlike autocast: compare outputs"


@dataclass(frozen=True, slots=True)
class _Narrowable:
    """What 16 bits would shorten, by the roofline: `saved` of the time at least and at most. Autocast makes `launches`
    times as many as there are, casting what it is given at each call."""

    ops: list[OpRecord]
    touched: list[OpRecord]
    peaks: Peaks
    saved: tuple[float, float]
    launches: float

    def gain(self, evidence: Evidence) -> Gain:
        low, high = self.saved
        return evidence.kernel_gain(
            LEAST_REACHED * low,
            high,
            "roofline times of these ops, and of ops that take their type from them, in float32 (TF32 if enabled) and "
            "in bfloat16; a third to all of the difference is assumed, since few models reach the roof",
            self.touched,
        )

    def evidence(self, evidence: Evidence) -> dict[str, Any]:
        return {
            "float32_ops": len(self.ops),
            "float32_macs_share": sum(op.cost.macs for op in self.ops) / max(evidence.totals.macs, 1),
            "device": self.peaks.name,
            "float32_flops_per_s": self.peaks.rate("float32"),
            "bfloat16_flops_per_s": self.peaks.rate("bfloat16"),
        }


@rule("autocast-bf16", family="precision", option="precision")
def autocast_bf16(evidence: Evidence) -> Iterator[Advice]:
    found = _narrowable(evidence)
    if found is None or _casts_take_longer(evidence, found):
        return
    yield Advice(
        rule="autocast-bf16",
        where=Where("", tuple(op.index for op in found.ops)),
        evidence=found.evidence(evidence),
        recommendation="run products and convolutions in bfloat16: tensor cores are faster there",
        change=Patch('with torch.autocast("cuda", dtype=torch.bfloat16):\n    output = model(*inputs)'),
        expected_gain=found.gain(evidence),
        risk="8 bits of mantissa: compare outputs; no gain if launches are the limit",
        confidence="low" if evidence.waits_for_host else "medium",
    )


@rule("bfloat16-weights", family="precision", option="precision")
def bfloat16_weights(evidence: Evidence) -> Iterator[Advice]:
    """Measured: the casts of autocast would take the host longer than the kernels gain, so there must be none."""
    found = _narrowable(evidence) if evidence.time_s else None
    if found is None or not _casts_take_longer(evidence, found) or _near_bandwidth(evidence):
        return
    if not evidence.waits_for_host and evidence.most_gain() < LEAST_GAIN:
        return
    host = {"host_s": evidence.host_s, "time_s": evidence.time_s, "autocast_launches": found.launches}
    yield Advice(
        rule="bfloat16-weights",
        where=Where("", tuple(op.index for op in found.ops)),
        evidence=found.evidence(evidence) | host,
        recommendation="hold weights and activations in bfloat16: the casts of autocast would keep the host busy",
        change=Patch(_WHOLE),
        expected_gain=found.gain(evidence),
        risk=_WHOLE_RISK,
        confidence="low" if evidence.waits_for_host else "medium",
    )


@rule("memory-bound-layers", family="precision", option="precision")
def memory_bound_layers(evidence: Evidence) -> Iterator[Advice]:
    """Measured: ops that reach the bandwidth, in float32."""
    waiting = _near_bandwidth(evidence)
    if not waiting:
        return
    share = evidence.share(waiting)
    yield Advice(
        rule="memory-bound-layers",
        where=Where(waiting[0].module, tuple(op.index for op in waiting)),
        evidence={"ops": len(waiting), "share_of_op_time": share.value, "bytes_moved": sum(map(moved, waiting))},
        recommendation="hold activations and weights in 16 bits: these ops run at the bandwidth of the memory",
        change=Patch(_WHOLE),
        expected_gain=share.gain(0.25, 0.5, "half of the bytes at the same bandwidth"),
        risk=_WHOLE_RISK,
        confidence="medium",
    )


def _near_bandwidth(evidence: Evidence) -> list[OpRecord]:
    """The ops that reach it, if together they take a good part of the time; otherwise none."""
    rows = evidence.capture.measured.ops if evidence.capture.measured else {}
    if not evidence.is_cuda or not rows:
        return []
    waiting = [
        op
        for op in evidence.forward
        if op.signature.dtype == "float32"
        and (row := rows.get(op.index, {})).get("bound") == "memory"
        and (row.get("roof_share") or 0.0) >= NEAR_ROOF
    ]
    share = evidence.share(waiting)
    return waiting if bool(evidence.op_times) and share.value >= MEMORY_SHARE else []


def _narrowable(evidence: Evidence) -> _Narrowable | None:
    """None where 16 bits gain little."""
    peaks, machine = evidence.peaks, evidence.machine
    if not evidence.is_cuda or peaks is None or not peaks.rate("bfloat16"):
        return None
    ops = [
        op
        for op in evidence.capture.ops
        if op.phase != "optimizer"
        and op.category in TENSOR_CORES
        and op.cost.macs > 0
        and op.signature.dtype == "float32"
    ]
    # Ops of the forward pass that take the type of their inputs follow where all of these have 16 bits.
    narrow, touched = {op.index for op in ops}, [*ops]
    for op in evidence.flow.of_category("activation", "elementwise", "normalization", "pooling"):
        follows = op.category != "normalization" or "batch_norm" in op.op
        sources = [source for source in op.producers if source is not None]
        if follows and sources and op.signature.dtype == "float32" and all(source in narrow for source in sources):
            narrow.add(op.index)
            touched.append(op)
    # With TF32 there is less to gain; where it is not known whether it is on, both are assumed: that is the range.
    savings = []
    for tf32 in (True, False) if machine.matmul_tf32 is None else (machine.matmul_tf32,):
        least = LeastTime(peaks, tf32, machine.convolution_tf32 is not False)
        whole = least.whole(evidence.capture.ops)
        saved = sum(max(least.of(op) - least.in_bfloat16(op), 0.0) for op in touched)
        savings.append(min(saved / whole, 1.0) if whole else 0.0)
    if max(savings) < LEAST_GAIN:
        return None
    # Tensors that these ops read in 32 bits, parameters too, are cast at each call.
    casts = sum(source not in narrow for op in ops for source in op.producers)
    launches = 1 + casts / max(len(evidence.capture.ops), 1)
    return _Narrowable(ops, touched, peaks, (min(savings), max(savings)), launches)


def _casts_take_longer(evidence: Evidence, found: _Narrowable) -> bool:
    """Where measurements show that the host has no time for them. Training keeps its weights in 32 bits anyway."""
    is_held_up = evidence.waits_for_host or evidence.most_gain(found.launches) < LEAST_GAIN
    return is_held_up and not evidence.is_train
