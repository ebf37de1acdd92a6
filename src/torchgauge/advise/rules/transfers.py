"""Traffic between host and device inside the forward pass."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.records import OpRecord


@rule("device-transfer", family="devices")
def device_transfer(evidence: Evidence) -> Iterator[Advice]:
    """A copy to another kind of device than the model's, or a tensor made there and brought over."""
    for op in evidence.forward:
        to = _other_device(evidence, op)
        if to is None:
            continue
        yield Advice(
            rule="device-transfer",
            where=Where(op.module, (op.index,)),
            evidence={"op": op.op, "device": to, "bytes": moved(op)},
            recommendation="keep the tensor on the model's device: a transfer in forward makes the device wait",
            code=f"torch.…(…, device=x.device)  # in {op.module or 'the model'}'s forward, in place of '{to}'",
            expected_gain=evidence.share([op]).gain(0.5, 1.0, "the transfer goes away"),
            risk="what the host does with the tensor must be done on the device",
            confidence="high" if op.op == "aten::_to_copy" else "medium",
        )


def _other_device(evidence: Evidence, op: OpRecord) -> str | None:
    device = op.signature.attributes.get("device")
    if op.op != "aten::_to_copy" or not isinstance(device, str):
        return None
    return device if device.partition(":")[0] != evidence.device else None


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
            recommendation="do without .item() in forward: the host waits for the device, then the device for it",
            code="torch.where(condition, a, b)  # in place of a branch on .item()",
            expected_gain=evidence.share([op]).gain(0.0, 1.0, "the wait, where it was measured"),
            risk="a branch on data becomes two computations and a choice",
            confidence="medium",
        )
