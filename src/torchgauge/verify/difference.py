"""The difference between the outputs of two runs on the same inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from torchgauge.capture.structure import tensors_within
from torchgauge.nested import find_named

if TYPE_CHECKING:
    from torchgauge.facts.document_types import OutputError


@dataclass(frozen=True, slots=True)
class Difference:
    """`relative` and `cosine` are over all floating-point outputs as one vector, `top1` is the share of rows with the
    same largest entry, or None without logits. `reason`: why the outputs cannot be compared."""

    relative: float | None
    cosine: float | None = None
    top1: float | None = None
    reason: str | None = None

    def figures(self) -> OutputError:
        return {"relative": self.relative, "cosine": self.cosine, "top1": self.top1}


def output_tensors(value: object) -> list[tuple[str, torch.Tensor]]:
    """Copies of the tensors in a nested output, with their names. Tensors inside other objects are only used if there
    are no others: a key-value cache would hide a difference of the logits."""
    # The innermost key or field names a tensor; positions in lists do not.
    found = [
        (next((key for key in reversed(path) if isinstance(key, str)), ""), tensor)
        for path, tensor in find_named(value, torch.Tensor)
    ] or [("", tensor) for tensor in tensors_within(value)]
    return [(name, tensor.detach().clone()) for name, tensor in found]


def compare_outputs(before: list[tuple[str, torch.Tensor]], after: list[tuple[str, torch.Tensor]]) -> Difference:
    if not before:
        return Difference(None, reason="the model returns no tensors to compare")
    shapes = [[tuple(tensor.shape) for _, tensor in side] for side in (before, after)]
    if shapes[0] != shapes[1]:
        return Difference(None, reason="the outputs have different shapes")
    pairs = [(a, b) for (_, a), (_, b) in zip(before, after, strict=True)]
    floating = [pair for pair in pairs if pair[0].is_floating_point() or pair[0].is_complex()]
    if not floating:
        same = all(torch.equal(a, b.to(a)) for a, b in pairs)
        return Difference(0.0 if same else 1.0)
    sums = [_sums(_real(a), _real(b)) for a, b in floating]
    known = [each for each in sums if each is not None]
    if len(known) < len(sums):
        return Difference(None, reason="only one of the two outputs is finite in some places")
    elements, finite, apart, whole, other, product = map(sum, zip(*known, strict=True))
    if elements and not finite:
        return Difference(None, reason="the model's outputs are not finite, so they cannot be compared")
    top1 = _top1(before, after)
    if whole == 0:
        return Difference(0.0 if apart == 0 else 1.0, None, top1)
    cosine = product / math.sqrt(whole * other) if other else None
    return Difference(math.sqrt(apart / whole), cosine, top1)


def _sums(a: torch.Tensor, b: torch.Tensor) -> tuple[float, ...] | None:
    """The number of elements, the number of finite ones, and the sums over these that the difference is computed from.
    Values that are infinite in both are a mask; None if values are infinite in only one of them."""
    elements, finite = a.numel(), a.isfinite() & b.isfinite()
    if not finite.all():
        if not (finite | (a == b) | (a.isnan() & b.isnan())).all():
            return None
        a, b = a[finite], b[finite]
    sums = ((a - b).square(), a.square(), b.square(), a * b)
    return (elements, a.numel(), *(float(each.sum()) for each in sums))


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """The values as real float64 numbers; on the CPU if the device is MPS, which has no float64."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.cpu().double() if tensor.device.type == "mps" else tensor.double()


def _top1(before: list[tuple[str, torch.Tensor]], after: list[tuple[str, torch.Tensor]]) -> float | None:
    """For the output named `logits`, or for the only floating-point output if it is a matrix of scores."""
    floating = [at for at, (_, tensor) in enumerate(before) if tensor.is_floating_point() and tensor.numel()]
    logits = [at for at in floating if before[at][0] == "logits" and before[at][1].dim() >= 2]
    if not logits and len(floating) == 1:
        alone = before[floating[0]][1]
        logits = floating if alone.dim() == 2 and alone.shape[1] > 1 else []
    if not logits:
        return None
    a, b = before[logits[0]][1], after[logits[0]][1]
    return float((a.argmax(-1) == b.argmax(-1)).double().mean())
