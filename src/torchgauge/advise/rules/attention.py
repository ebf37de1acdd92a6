"""Attention written out by hand: product, scale, mask, softmax, product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord

_PRODUCTS = {"aten::bmm", "aten::baddbmm", "aten::mm", "aten::matmul"}
# What may stand between: scales, masks, casts, dropout.
_BETWEEN = {"elementwise", "activation", "copy", "indexing"}
_MOST_BETWEEN = 8
_MASKS = {"aten::masked_fill", "aten::where", "aten::add"}
# Libraries that have both forms.
_SWITCHES = {
    "timm": "timm.layers.set_fused_attn(True, experimental=True)  # before the model is built",
    "transformers": 'model.set_attn_implementation("sdpa")  # or from_pretrained(..., attn_implementation="sdpa")',
}


@rule("attention-by-hand", family="fusion")
def attention_by_hand(evidence: Evidence) -> Iterator[Advice]:
    found = [(op, ops) for op in evidence.flow.named("aten::_softmax") if (ops := _attention(evidence, op))]
    for op, ops in found:
        scores = op.signature.outputs[0]
        # The products stay, in the same kernel: of the work, what is between them goes away, and so do the copies of
        # turned queries, keys and values that the products want in order.
        copies = [source for product in (ops[0], ops[-1]) for source in evidence.flow.sources(product)]
        copies = [copy for copy in copies if copy.op == "aten::clone" and evidence.flow.only_reader(copy) is not None]
        whole, between = evidence.share([*copies, *ops]), evidence.share([*copies, *ops[1:-1]])
        spared = between.value * (1 - between.calls) / max(whole.value * (1 - whole.calls), 1e-12)
        yield Advice(
            rule="attention-by-hand",
            where=Where(op.module, tuple(step.index for step in ops)),
            evidence={"ops": len(ops), "scores_shape": list(scores.shape), "scores_bytes": scores.nbytes},
            recommendation="use scaled_dot_product_attention: the scores are never written to memory",
            code=_code(evidence, op, ops),
            expected_gain=whole.gain(
                0.5 * spared,
                min(spared, 1.0),
                "the passes over the scores between the two products go away",
                fewer_calls=1 - 1 / (len(copies) + len(ops)),
            ),
            risk="attention weights are no longer returned; a mask or a bias must be given as attn_mask",
            confidence="high",
        )


def _attention(evidence: Evidence, softmax: OpRecord) -> list[OpRecord]:
    """The ops from the first product to the second; empty where it is no attention."""
    scores = softmax.signature.outputs[0]
    if len(scores.shape) < 3 or softmax.signature.attributes.get("dim") not in (-1, len(scores.shape) - 1):
        return []
    head, tail = _walk(evidence, softmax, -1, scores.numel), _walk(evidence, softmax, 1, scores.numel)
    if not head or not tail or scores.shape[-1] < _inner_size(head[-1]):
        return []
    return [*reversed(head), softmax, *tail]


def _inner_size(product: OpRecord) -> int:
    """The length of the sums of a product: of attention over channels all positions, and its scores are small."""
    made = product.signature.outputs[0]
    return product.cost.macs // max(made.numel, 1)


def _walk(
    evidence: Evidence, near: OpRecord, direction: int, elements: int, left: int = _MOST_BETWEEN
) -> list[OpRecord]:
    """From the softmax to the product before or behind it, each op reading what its neighbour made."""
    for op in _neighbours(evidence, near, direction, elements):
        if op.op in _PRODUCTS and _is_over_scores(op, direction, elements):
            return [op]
        if op.category in _BETWEEN and left:
            further = _walk(evidence, op, direction, elements, left - 1)
            if further:
                return [op, *further]
    return []


def _neighbours(evidence: Evidence, op: OpRecord, direction: int, elements: int) -> Sequence[OpRecord]:
    """Whose scores or weights are read elsewhere, or given back, must compute them; thrown away they need not be."""
    flow = evidence.flow
    if direction > 0:
        readers = [user for user in flow.users(op) if not flow.is_dead(user)]
        return readers if len(readers) == 1 and not flow.is_result(op) else []
    made = [source for source in flow.sources(op) if source.signature.outputs[0].numel == elements]
    return [source for source in made if flow.is_kept_for(source, op)]


def _is_over_scores(product: OpRecord, direction: int, elements: int) -> bool:
    """The first product makes the scores without a weight; the second reads them."""
    if product.weights:
        return False
    specs = product.signature.outputs if direction < 0 else product.signature.inputs
    return any(spec.numel == elements for spec in specs)


def _code(evidence: Evidence, op: OpRecord, ops: Sequence[OpRecord]) -> str:
    switch = _SWITCHES.get(evidence.library_of(op) or "")
    if switch is not None:
        return switch
    record = evidence.modules.get(op.module)
    if record is not None and record.type == "MultiheadAttention":
        return "out, _ = attention(query, key, value, need_weights=False)"
    masks = [each for each in ops if each.op.rstrip("_") in _MASKS and len(each.signature.inputs) > 1]
    near = [near for each in masks for near in (each, *evidence.dataflow.ancestors(each, _MOST_BETWEEN, ops[0]))]
    buffers = {name for each in near for name in each.weights}
    is_causal = any(each.op.rstrip("_") in ("aten::tril", "aten::triu") for each in near) or (
        evidence.model is not None and any(map(evidence.model.is_triangle, buffers))
    )
    given = ", is_causal=True" if is_causal else ", attn_mask=mask" if masks else ""
    scale, default = _scale(ops, op), _inner_size(ops[0]) ** -0.5
    if scale is None or abs(scale / default - 1) > 1e-3:
        given += ", scale=scale" if scale is None else f", scale={scale:.6g}"
    # Only tensors with a dimension for heads, and rows in order, have fused kernels.
    has_heads = len(op.signature.outputs[0].shape) > 3
    taken = "" if has_heads else "[:, None]"
    taken += ".contiguous()" if _are_turned(ops[0], ops[-1]) else ""
    tensors, behind = ", ".join(f"{name}{taken}" for name in "qkv"), "" if has_heads else ".squeeze(1)"
    return f"out = torch.nn.functional.scaled_dot_product_attention({tensors}{given}){behind}"


def _scale(ops: Sequence[OpRecord], softmax: OpRecord) -> float | None:
    """What the scores are multiplied with before the softmax; None where it is not a number."""
    scale = 1.0
    for op in ops[1 : ops.index(softmax)]:
        name, factor = op.op.rstrip("_"), op.signature.attributes.get("other")
        if name not in ("aten::mul", "aten::div"):
            continue
        if not isinstance(factor, int | float) or not factor:
            return None
        scale = scale * factor if name == "aten::mul" else scale / factor
    return scale


def _are_turned(first: OpRecord, second: OpRecord) -> bool:
    """Whether the rows of queries, keys or values are out of order: images whose channels come first."""
    query, keys, values = first.signature.inputs[-2], first.signature.inputs[-1], second.signature.inputs[-1]
    are_in_order = [spec.stride is None or spec.stride[-1] == 1 for spec in (query, values)]
    return not all(are_in_order) or keys.stride is None or keys.stride[-2] != 1
