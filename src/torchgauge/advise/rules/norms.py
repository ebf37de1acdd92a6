"""Normalisation written out by hand: square, mean, root, product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.flow import Flow
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord

_MOST_EPS = 1e-2
_ROOTS = ("aten::rsqrt", "aten::sqrt")
_SUMS = ("aten::add", "aten::add_")
_SPREADS = ("aten::var", "aten::mean")
_SCALES = ("aten::mul", "aten::div", "aten::mul_", "aten::div_")


@dataclass(frozen=True, slots=True)
class Norm:
    ops: tuple[OpRecord, ...]
    is_centred: bool


@rule("norm-by-hand", family="fusion")
def norm_by_hand(evidence: Evidence) -> Iterator[Advice]:
    found = [norm for op in evidence.flow.named(*_ROOTS) if (norm := _norm(evidence.flow, op))]
    # On the CPU torch has no RMS norm of one pass either, and its layer norm copies what is not in order first.
    for norm in found:
        is_in_order = norm.ops[0].signature.inputs[0].stride is None
        if not evidence.is_cuda and not (norm.is_centred and is_in_order):
            continue
        ops, name = norm.ops, "layer" if norm.is_centred else "RMS"
        spared = 1 - moved(max(ops, key=moved)) / sum(map(moved, ops))
        yield Advice(
            rule="norm-by-hand",
            where=Where(ops[0].module, tuple(op.index for op in ops)),
            evidence={
                "norm": name,
                "ops": len(ops),
                "passes": [op.op for op in ops],
                "bytes_moved": sum(map(moved, ops)),
            },
            recommendation=f"use torch's {name} norm: written out, each of its ops reads and writes memory",
            change=_torch_norm(evidence, norm),
            expected_gain=evidence.share(ops).one_pass(spared, len(ops)),
            risk="rounding differs in the last digits; a wider type inside must stay",
            confidence="high",
        )


def _torch_norm(evidence: Evidence, norm: Norm) -> Patch | None:
    """For a module that does nothing else, with its parameters; a norm amid a larger forward has to be edited."""
    path, ops = norm.ops[0].module, norm.ops
    size = ops[0].signature.inputs[0].shape[-1]
    scales = [op.weights for op in ops if op.weights and op.op in _SCALES]
    shifts = [op.weights for op in ops if op.weights and op.op in _SUMS]
    eps = next((op.signature.attributes.get("other") for op in ops if _is_eps(op)), None)
    names = [name for op in ops for name in op.weights]
    is_plain = all(name in evidence.params and evidence.params[name].spec.shape == (size,) for name in names)
    # Torch's norms divide by the number of elements, not by one less.
    is_biased = all(not op.signature.attributes.get("correction", 1) for op in ops if op.op == "aten::var")
    if not evidence.is_whole(path, ops) or len(scales) > 1 or len(shifts) > 1 or not is_plain or not is_biased:
        return None
    if eps is None or (shifts and not (norm.is_centred and scales)):
        return None
    kind = "LayerNorm" if norm.is_centred else "RMSNorm"
    given = f", bias={bool(shifts)}" if norm.is_centred and scales else ""
    made = f"torch.nn.{kind}({size}, eps={eps}, elementwise_affine={bool(scales)}{given})"
    lines = [f"old, new = model.get_submodule(path), {made}"]
    pairs = [*zip(("weight",), scales, strict=False), *zip(("bias",), shifts, strict=False)]
    lines += [f"new.{own} = old.{weights[0].rpartition('.')[2]}" for own, weights in pairs]
    return Patch("\n".join([*lines, "model.set_submodule(path, new)"]), ("path",), ((path,),))


def _norm(flow: Flow, root: OpRecord) -> Norm | None:
    """The ops of one normalisation over the last dimension, each reading what the one before made."""
    eps = flow.source(root)
    spread = flow.source(eps) if eps is not None and _is_eps(eps) else None
    if eps is None or spread is None or spread.op not in _SPREADS or not _is_over_last(spread):
        return None
    scaled = next((op for op in flow.users(root) if op.op in _SCALES), None)
    if scaled is None:
        return None
    if spread.op == "aten::var":
        inside: list[OpRecord] = []
    else:
        square = flow.source(spread)
        if square is None or not _is_square(square):
            return None
        inside = [square]
    # The mean and its difference to the input, where the root scales that.
    centred: list[OpRecord] = []
    for op in flow.sources(scaled):
        means = [source for source in flow.sources(op) if source.op == "aten::mean" and _is_over_last(source)]
        if op.op == "aten::sub" and means:
            centred = [means[0], op]
            break
    # A norm over the variance always takes the mean away.
    if spread.op == "aten::var" and not centred:
        return None
    # Scale and shift by parameters behind it.
    affine: list[OpRecord] = []
    reader = flow.only_reader(scaled)
    while reader is not None and reader.weights and reader.op in (*_SCALES, *_SUMS) and len(affine) < 2:
        affine.append(reader)
        reader = flow.only_reader(reader)
    ops = {op.index: op for op in (*centred, *inside, spread, eps, root, scaled, *affine)}
    return Norm(tuple(ops[index] for index in sorted(ops)), bool(centred))


def _is_eps(op: OpRecord) -> bool:
    value = op.signature.attributes.get("other")
    return op.op in _SUMS and isinstance(value, float) and 0 < value < _MOST_EPS


def _is_square(op: OpRecord) -> bool:
    if op.op == "aten::pow":
        return op.signature.attributes.get("exponent") == 2
    # Of `x * x` the one tensor is listed once.
    return op.op == "aten::mul" and len(op.signature.inputs) == 1 and "other" not in op.signature.attributes


def _is_over_last(op: OpRecord) -> bool:
    dim, rank = op.signature.attributes.get("dim"), len(op.signature.inputs[0].shape)
    return isinstance(dim, list) and len(dim) == 1 and dim[0] in (-1, rank - 1)
