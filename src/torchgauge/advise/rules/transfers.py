"""Traffic between host and device inside the forward pass."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord
from torchgauge.units import format_count, format_seconds

# A transfer makes host and device wait for each other; PCIe 4 moves about 25 GB/s.
_LATENCY_S, _LINK_BYTES_PER_S = 10e-6, 25e9


@rule("device-transfer", family="devices")
def device_transfer(evidence: Evidence) -> Iterator[Advice]:
    """A copy to another kind of device than the model's."""
    for op in evidence.flow.named("aten::_to_copy"):
        to = _other_device(evidence, op)
        if to is None:
            continue
        yield Advice(
            rule="device-transfer",
            where=Where(op.module, (op.index,)),
            evidence={"op": op.op, "device": to, "bytes": moved(op)},
            recommendation="keep the tensor on the model's device: a transfer in forward makes the device wait",
            code="y = y.to(x.device)  # or made there: torch.zeros(size, device=x.device)",
            expected_gain=_waiting(evidence, op),
            risk="what the host does with the tensor must be done on the device",
            confidence="high",
        )


def _other_device(evidence: Evidence, op: OpRecord) -> str | None:
    device = op.signature.attributes.get("device")
    return device if isinstance(device, str) and device.partition(":")[0] != evidence.device else None


@rule("host-wait", family="devices")
def host_wait(evidence: Evidence) -> Iterator[Advice]:
    if not evidence.is_cuda:
        return
    for op in evidence.forward:
        if op.op not in ("aten::_local_scalar_dense", "aten::item"):
            continue
        yield Advice(
            rule="host-wait",
            where=Where(op.module, (op.index,)),
            evidence={"op": op.op, "ops_before": op.index},
            recommendation="avoid .item() in forward: the host waits for the device, then the device for it",
            code="y = torch.where(condition, a, b)  # in place of a branch on .item()",
            expected_gain=_waiting(evidence, op),
            risk="a branch on data becomes two computations and a choice",
            confidence="medium",
        )


def _waiting(evidence: Evidence, op: OpRecord) -> Gain:
    """Measured where it was; else what a link takes at least, beside the least time of the whole."""
    if op.index in evidence.op_times:
        return evidence.share([op]).gain(0.5, 1.0, "the op goes away")
    least = evidence.least_time
    if least is None:
        return evidence.share([op]).gain(0.0, 1.0, "the op goes away, and with it a wait that was not measured")
    seconds = _LATENCY_S + moved(op) / _LINK_BYTES_PER_S
    share = seconds / (seconds + least.whole(evidence.capture.ops))
    wait, rate = format_seconds(_LATENCY_S), f"{format_count(_LINK_BYTES_PER_S)}B/s"
    how = f"one wait of {wait} and the bytes at {rate} (assumed), beside the least time by the roofline"
    return Gain("time_s", 0.0, share, how)
