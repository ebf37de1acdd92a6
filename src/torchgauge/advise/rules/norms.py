"""Normalisation written out by hand: square, mean, root, product."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.records import OpRecord

_LEAST_SHARE = 0.02
_MOST_EPS = 1e-2
# Mean, difference, square, mean, eps: what stands before the root at most, and behind it scale and shift.
_BEFORE, _BEHIND = 6, 3


@rule("norm-by-hand", family="fusion")
def norm_by_hand(evidence: Evidence) -> Iterator[Advice]:
    found = [ops for op in evidence.flow.steps if (ops := _norm(evidence, op))]
    # On the CPU torch has no RMS norm of one pass either.
    found = [ops for ops in found if evidence.is_cuda or _is_centred(ops)]
    if evidence.share(op for ops in found for op in ops).value < _LEAST_SHARE:
        return
    for ops in found:
        centred = _is_centred(ops)
        large = max(ops, key=moved)
        spared = 1 - moved(large) / sum(map(moved, ops))
        yield Advice(
            rule="norm-by-hand",
            where=Where(ops[0].module, tuple(op.index for op in ops)),
            evidence={"ops": len(ops), "passes": [op.op for op in ops], "bytes_moved": sum(map(moved, ops))},
            recommendation=f"use torch's {'layer' if centred else 'RMS'} norm: written out, each op goes over memory",
            code=f"torch.nn.functional.{'layer_norm' if centred else 'rms_norm'}(x, x.shape[-1:], weight, eps=eps)",
            expected_gain=evidence.share(ops).one_pass(spared, len(ops)),
            risk="rounding differs in the last digits; a wider type inside must stay",
            confidence="high",
        )


def _norm(evidence: Evidence, root: OpRecord) -> list[OpRecord]:
    """The ops of one normalisation over the last dimension; empty where it is none."""
    eps = evidence.flow.before(root) if root.op in ("aten::rsqrt", "aten::sqrt") else None
    if eps is None or eps.op not in ("aten::add", "aten::add_") or not _is_eps(eps.signature.attributes.get("other")):
        return []
    before = _neighbours(evidence, root, -1, _BEFORE)
    names = [op.op for op in before]
    squares = any(_is_square(op) for op in before) or "aten::var" in names
    if not squares or not {"aten::mean", "aten::var"} & set(names) or not _is_over_last(before):
        return []
    first = next(at for at, op in enumerate(before) if op.op in ("aten::mean", "aten::var") or _is_square(op))
    behind = _neighbours(evidence, root, 1, _BEHIND)
    used = [op for op in behind if op.op in ("aten::mul", "aten::div", "aten::sub")]
    return [*before[first:], root, *used] if used else []


def _is_centred(ops: list[OpRecord]) -> bool:
    return any(op.op in ("aten::sub", "aten::var") for op in ops)


def _neighbours(evidence: Evidence, op: OpRecord, direction: int, most: int) -> list[OpRecord]:
    """The ops of the same module next to it, in order of execution."""
    found: list[OpRecord] = []
    for distance in range(1, most + 1):
        near = evidence.flow.after(op, direction * distance)
        if near is None or near.module != op.module:
            break
        found.append(near)
    return found if direction > 0 else found[::-1]


def _is_eps(value: object) -> bool:
    return isinstance(value, float) and 0 < value < _MOST_EPS


def _is_square(op: OpRecord) -> bool:
    if op.op == "aten::pow":
        return op.signature.attributes.get("exponent") == 2
    # Of `x * x` the one tensor is listed once.
    return op.op == "aten::mul" and len(op.signature.inputs) == 1 and "other" not in op.signature.attributes


def _is_over_last(ops: list[OpRecord]) -> bool:
    means = [op for op in ops if op.op in ("aten::mean", "aten::var")]
    last = [{-1, len(op.signature.inputs[0].shape) - 1} for op in means]
    dims = [op.signature.attributes.get("dim") for op in means]
    return all(isinstance(dim, list) and len(dim) == 1 and dim[0] in ends for dim, ends in zip(dims, last, strict=True))
