"""Attention written out by hand: product, scale, mask, softmax, product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isclose

from torchgauge.advise.attention_edit import WrittenAttention
from torchgauge.advise.axes import same_axis
from torchgauge.advise.code import Patch, SourceEdit
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord

_PRODUCTS = {"aten::bmm", "aten::baddbmm", "aten::mm", "aten::matmul"}
# What may stand between: scales, masks, casts, dropout.
_BETWEEN = {"elementwise", "activation", "copy", "indexing"}
_PLAIN_PRODUCTS = _PRODUCTS - {"aten::baddbmm"}
_MOST_BETWEEN = 8
_FEWEST_KEYS = 32
# Features of a head, where there are fewer keys: attention over channels has as many as there are positions.
_MOST_COPIED = 128
_MASKS = {"aten::masked_fill", "aten::where", "aten::add"}
# Libraries that have both forms, the attribute of a module that says so, and whether it must be true: in transformers a
# class without a fused form takes the setting and goes on as before.
_SWITCHES = {
    "timm": (
        "fused_attn",
        False,
        "for module in model.modules():  # of models to come: timm.layers.set_fused_attn(True)\n"
        "    if hasattr(module, 'fused_attn'):\n"
        "        module.fused_attn = True",
    ),
    "transformers": (
        "_supports_sdpa",
        True,
        "for module in model.modules():  # or from_pretrained(..., attn_implementation='sdpa')\n"
        "    if hasattr(module, 'set_attn_implementation'):\n"
        "        module.set_attn_implementation('sdpa')",
    ),
}
_WITHOUT_WEIGHTS = """\
def without_weights(module, args, kwargs):
    return args, {**kwargs, 'need_weights': False}
"""
_HOOK = "model.get_submodule(path).register_forward_pre_hook(without_weights, with_kwargs=True)"
# The fused layers of torch's fast path for inference, and their argument for the number of heads.
_FAST_PATHS = {"aten::_native_multi_head_attention": "num_head", "aten::_transformer_encoder_layer_fwd": "num_heads"}
_NO_FAST_PATH = "torch.backends.mha.set_fastpath_enabled(False)"
# Shorter sequences gain nothing from scores that stay in the cache.
_LEAST_KEYS = 1024
# On a CPU the softmax of a score, and the passes over it, take as long as so many multiplications (low, high); measured
# on an AVX-512 machine with one thread, 64 to 512 features, 1,024 to 4,096 keys.
_MACS_PER_SCORE = (80, 200)
# On a GPU: times that the scores are read or written.
_PASSES = 6


@rule("attention-by-hand", family="fusion")
def attention_by_hand(evidence: Evidence) -> Iterator[Advice]:
    for op, ops, copies in written_attentions(evidence):
        scores = op.signature.outputs[0]
        # The products stay, in the same kernel: of the work, what is between them goes away, and so do the copies.
        # Of CUDA's kernels those that share keys take 16 bits.
        is_able = not evidence.is_cuda or op.signature.dtype in ("float16", "bfloat16")
        shares_keys = is_able and sum(map(_repeats, copies)) >= 2
        whole, between = evidence.share([*copies, *ops]), evidence.share([*copies, *ops[1:-1]])
        spared = between.value * (1 - between.calls) / max(whole.value * (1 - whole.calls), 1e-12)
        yield Advice(
            rule="attention-by-hand",
            where=Where(op.module, tuple(step.index for step in ops)),
            evidence={"ops": len(ops), "scores_shape": list(scores.shape), "scores_bytes": scores.nbytes},
            recommendation="use scaled_dot_product_attention with enable_gqa=True, and keys and values not repeated"
            if shares_keys
            else "use scaled_dot_product_attention: the scores are never written to memory",
            change=None if shares_keys else _change(evidence, op, ops),
            expected_gain=whole.gain(
                # A CPU's fused kernel multiplies in blocks, which for short sequences takes longer than two products.
                (0.5 if evidence.is_cuda else 0.35) * spared,
                min(spared, 1.0),
                "the passes over the scores between the two products go away",
                fewer_calls=1 - 1 / (len(copies) + len(ops)),
            ),
            risk="attention weights are no longer returned; a mask or a bias must be passed as attn_mask",
            confidence="high",
        )


@rule("attention-fast-path", family="fusion")
def attention_fast_path(evidence: Evidence) -> Iterator[Advice]:
    """Attention layers of torch in evaluation. Their fast path writes the scores to memory: on a CPU always, on a GPU
    where the weights are wanted, as they are unless the caller says otherwise."""
    for op in evidence.flow.named(*_FAST_PATHS):
        given, heads = op.signature.inputs[0], op.signature.attributes.get(_FAST_PATHS[op.op])
        if len(given.shape) != 3 or not isinstance(heads, int) or given.shape[1] < _LEAST_KEYS:
            continue
        batch, keys, _ = given.shape
        scores, gives_weights = batch * heads * keys * keys, op.signature.attributes.get("need_weights") is True
        made = {output.shape for output in op.signature.outputs[1:]}
        is_read = evidence.flow.is_result(op) or any(
            spec.shape in made for user in evidence.flow.users(op) for spec in user.signature.inputs
        )
        if (gives_weights and is_read) or (evidence.is_cuda and not gives_weights):
            continue
        if evidence.is_cuda:
            spared = _PASSES * scores * given.itemsize
            share = spared / (spared + moved(op))
            low, high = share / 2, share
        else:
            low, high = (each * scores / (each * scores + op.cost.macs) for each in _MACS_PER_SCORE)
        wanted = ["pass need_weights=False"] if gives_weights else []
        wanted += [] if evidence.is_cuda else ["turn off torch's fast path for attention"]
        hook = Patch(_HOOK, ("path",), ((op.module,),), _WITHOUT_WEIGHTS) if gives_weights else None
        without = (
            Patch(_NO_FAST_PATH) if hook is None else replace(hook, setup=f"{_WITHOUT_WEIGHTS}\n{_NO_FAST_PATH}\n")
        )
        yield Advice(
            rule="attention-fast-path",
            where=Where(op.module, (op.index,), source=evidence.call_line(op.module)),
            evidence={"op": op.op, "scores_bytes": scores * given.itemsize, "gives_weights": gives_weights},
            recommendation=f"{' and '.join(wanted)}: {keys:,} × {keys:,} scores are written to memory",
            change=hook if evidence.is_cuda else without,
            expected_gain=evidence.share([op]).gain(low, high, "the passes over the scores go away"),
            risk="rounding differs in the last digits; the fast path is off for every layer of this process",
            confidence="medium",
        )


def written_attentions(evidence: Evidence) -> Iterator[tuple[OpRecord, list[OpRecord], list[OpRecord]]]:
    """The softmax of each attention, its ops from the first product to the second, and the copies of queries, keys and
    values that only these products read: repeated for every head, or turned into the order that a product wants."""
    for op in evidence.flow.named("aten::_softmax"):
        if ops := _attention(evidence, op):
            copies: list[OpRecord] = []
            todo = [source for product in (ops[0], ops[-1]) for source in evidence.flow.sources(product)]
            while todo:
                near = todo.pop()
                if near.op == "aten::clone" and evidence.flow.only_reader(near) is not None:
                    copies.append(near)
                    todo += evidence.flow.sources(near)
            yield op, ops, copies


def _repeats(copy: OpRecord) -> bool:
    """Whether it holds each element of what it reads several times: keys that several heads share."""
    read = copy.signature.inputs[0]
    return 2 * read.distinct_numel <= copy.signature.outputs[0].numel


def _attention(evidence: Evidence, softmax: OpRecord) -> list[OpRecord]:
    """The ops from the first product to the second; empty if it is not attention."""
    scores = softmax.signature.outputs[0]
    if len(scores.shape) < 3:
        return []
    axis = int(softmax.signature.attributes.get("dim") or 0) % len(scores.shape)
    head, tail = _walk(evidence, softmax, -1, scores.numel), _walk(evidence, softmax, 1, scores.numel)
    if not head or not tail or not _is_over_keys(softmax, axis, head, tail):
        return []
    ops, inner = [*reversed(head), softmax, *tail], _inner_size(head[-1])
    # Short sequences gain by the copies that their products make of queries and keys, which fused attention does not.
    runs = evidence.dataflow.first_runs
    again = {*runs, *runs.values()}  # `repeated-work` covers copies that each step makes of the same keys
    copied = [op for op in evidence.flow.sources(ops[0]) if op.op == "aten::clone" and op.index not in again]
    # On a CPU the fused kernel takes as long for them (20 keys: 6 % faster and 4 % slower in two measurements).
    is_short = scores.shape[axis] < (inner if evidence.is_cuda else max(inner, _FEWEST_KEYS))
    return [] if is_short and not (len(copied) > 1 and inner <= _MOST_COPIED) else ops


def _is_over_keys(softmax: OpRecord, axis: int, head: Sequence[OpRecord], tail: Sequence[OpRecord]) -> bool:
    """Whether the dimension of a softmax, which einsum may put anywhere, is one that the first product makes and the
    second adds up."""
    at: int | None = axis
    for reader, op in zip((softmax, *head), head, strict=False):
        read, made = reader.signature.inputs[reader.producers.index(op.index)], op.signature.outputs[0]
        at = None if at is None else same_axis(at, read, made)
    if at is None or at < len(head[-1].signature.outputs[0].shape) - 2:
        return False
    at = axis
    for op, reader in zip((softmax, *tail), tail, strict=False):
        place, made = reader.producers.index(op.index), op.signature.outputs[0]
        read = reader.signature.inputs[place]
        at = None if at is None else same_axis(at, made, read)
    return at == len(read.shape) - (1 if place == 0 else 2)


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


def _change(evidence: Evidence, op: OpRecord, ops: Sequence[OpRecord]) -> Patch | SourceEdit | None:
    attribute, is_set, switch = _SWITCHES.get(evidence.library_of(op) or "", ("", False, ""))
    if switch:
        has_switch = evidence.model is not None and evidence.model.has(op.module, attribute, is_set=is_set)
        return Patch(switch) if has_switch else None
    record = evidence.modules.get(op.module)
    if record is not None and record.type == "MultiheadAttention":
        return Patch(_HOOK, ("path",), ((op.module,),), _WITHOUT_WEIGHTS)
    return _edit(evidence, ops)


def _edit(evidence: Evidence, ops: Sequence[OpRecord]) -> SourceEdit | None:
    first, last = evidence.code_at(ops[0]), evidence.code_at(ops[-1])
    if first is None or last is None or first[0] is not last[0] or ops[0].op not in _PLAIN_PRODUCTS:
        return None
    softmax = next(op for op in ops if op.op == "aten::_softmax")
    if softmax.signature.attributes.get("dim") not in (-1, len(softmax.signature.outputs[0].shape) - 1):
        return None
    masks = [each for each in ops if each.op.rstrip("_") in _MASKS and len(each.signature.inputs) > 1]
    near = [near for each in masks for near in (each, *evidence.dataflow.ancestors(each, _MOST_BETWEEN, ops[0]))]
    buffers = {name for each in near for name in each.weights}
    is_causal = any(each.op.rstrip("_") in ("aten::tril", "aten::triu") for each in near) or (
        evidence.model is not None and bool(buffers) and any(map(evidence.model.is_triangle, buffers))
    )
    *_, queries, keys = ops[0].signature.outputs[0].shape
    scale = _scale(ops, softmax)
    if scale is None:
        return None
    is_default = isclose(scale, _inner_size(ops[0]) ** -0.5, rel_tol=1e-3)
    # Only tensors with a dimension for heads, and rows in order, have fused kernels.
    has_heads = len(softmax.signature.outputs[0].shape) > 3
    mask_ranks = {len(spec.shape) for each in masks for spec in each.signature.inputs[1:]}
    written = WrittenAttention(
        first[0],
        scale=None if is_default else scale,
        is_causal=is_causal and queries == keys,
        taken=("" if has_heads else "[:, None]") + (".contiguous()" if _are_turned(evidence, ops[0], ops[-1]) else ""),
        given=".squeeze(1)" if not has_heads else "",
        mask_taken="[:, None]" if not has_heads and 3 in mask_ranks else "",
    )
    return written.edit(first[1], last[1])


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


def _are_turned(evidence: Evidence, first: OpRecord, second: OpRecord) -> bool:
    """Whether the rows of queries, keys or values are out of order: images whose channels come first. The copies that
    products make of turned tensors are not what attention would be given."""
    given = []
    for product, at in ((first, -2), (first, -1), (second, -1)):
        place = len(product.signature.inputs) + at
        source = evidence.flow.source(product, place)
        is_copy = source is not None and source.op == "aten::clone"
        given.append(source.signature.inputs[0] if source is not None and is_copy else product.signature.inputs[place])
    query, keys, values = given
    are_in_order = [spec.stride is None or spec.stride[-1] == 1 for spec in (query, values)]
    return not all(are_in_order) or keys.stride is None or keys.stride[-2] != 1
