"""What a file holds that it need not: bits that are all zero, and the state of an optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import TensorSpec

# Less of the whole is not worth another file.
LEAST_SHARE = 0.05


@rule("narrower-type", family="file")
def narrower_type(evidence: Evidence) -> Iterator[Advice]:
    """One piece of advice for all tensors: a file is converted as a whole."""
    quantity = "param_bytes" if evidence.capture.stored is None else "stored_bytes"
    whole = max(int(evidence.totals[quantity] or 0), 1)
    rows = [row for row in evidence.weight_rows.values() if row.get("fits") and row.shared_with is None]
    saved = sum(int(row.bytes) - TensorSpec(tuple(row.shape), row.fits).nbytes for row in rows)
    if saved < LEAST_SHARE * whole:
        return
    largest, share = max(rows, key=lambda row: row.bytes), min(saved / whole, 1.0)
    yield Advice(
        rule="narrower-type",
        where=Where(weight=str(largest.name)),
        evidence={
            "tensors": len(rows),
            "stored_as": largest.dtype,
            "fits": largest.fits,
            "bytes": sum(row.bytes for row in rows),
            "names": [row.name for row in rows[:10]],
        },
        recommendation=f"store these tensors as {largest.fits}: it represents every one of their values exactly",
        change=Patch(
            f"narrow = torch.{largest.fits}\n"
            "state = model.state_dict()\n"
            "for name, tensor in state.items():\n"
            "    if tensor.is_floating_point() and torch.equal(tensor, tensor.to(narrow).to(tensor.dtype)):\n"
            "        state[name] = tensor.to(narrow)  # then save the state"
        ),
        expected_gain=Gain(quantity, share, share, "half of their bytes"),
        risk="a model loaded this way computes in that type unless converted back",
        confidence="high",
    )


@rule("stored-optimizer-state", family="file")
def stored_optimizer_state(evidence: Evidence) -> Iterator[Advice]:
    tensors = evidence.capture.stored.tensors if evidence.capture.stored else ()
    state = [tensor for tensor in tensors if tensor.role == "optimizer" and tensor.shared_with is None]
    nbytes, whole = sum(tensor.nbytes for tensor in state), evidence.totals.stored_bytes or 1
    if nbytes >= LEAST_SHARE * whole and not evidence.is_train:
        largest = max(state, key=lambda tensor: tensor.nbytes)
        yield Advice(
            rule="stored-optimizer-state",
            where=Where(weight=largest.name),
            evidence={"tensors": len(state), "bytes": nbytes, "stored_bytes": whole},
            recommendation="for inference, save the model's parameters alone: the optimizer's state is for training",
            change=None,
            expected_gain=Gain("stored_bytes", nbytes / whole, nbytes / whole, "the bytes of the state"),
            risk="training cannot be resumed from such a file: keep this one for that",
            confidence="high",
        )
