"""Attention written out by hand: product, scale, mask, softmax, product."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import isclose, prod

from torchgauge.advise.code import Patch, Source, SourceEdit, Span, called, receiver
from torchgauge.advise.dataflow import same_axis
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.masks import HIDDEN, SEEN, fill_value, is_hiding, triangle
from torchgauge.advise.processor import attention_seconds
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import Cost, OpRecord, TensorSpec, contiguous_stride

_PRODUCTS = {"aten::bmm", "aten::baddbmm", "aten::mm", "aten::matmul"}
# With so few keys a CPU's softmax takes longer than predicted, and what a fused kernel saves is not known.
_TOO_FEW_KEYS = 16
# Nor for so few queries, where reading keys and values is what takes time.
_TOO_FEW_QUERIES = 8
# Ops that may run between the products: scales, masks, casts, dropout.
_BETWEEN = {"elementwise", "activation", "copy", "indexing"}
_PLAIN_PRODUCTS = _PRODUCTS - {"aten::baddbmm"}
_MOST_BETWEEN = 8
# Features of a head, where there are fewer keys: attention over channels has as many as there are positions.
_MOST_COPIED = 128
# Methods that the scores may go through on their way.
_CASTS = {"to", "type_as", "float", "half", "type", "contiguous"}
_COPIES = {"aten::clone", "aten::_to_copy", "aten::copy"}
_REPEATS = {f"aten::{name}" for name in ("clone", "repeat", "repeat_interleave", "expand_copy")}
_HEADS_RANK = 4  # batch, heads, tokens, features
_FILLS = {"aten::masked_fill", "aten::masked_fill_"}
_DROPOUTS = {"aten::native_dropout", "aten::_fused_dropout", "aten::dropout"}
_MASKS = {"aten::masked_fill", "aten::where", "aten::add", "aten::sub"}
# Libraries that have both forms, the attribute of a module that says so, and whether it must be true: in transformers a
# class without a fused form takes the setting and goes on as before.
_SWITCHES = {
    "timm": (
        "fused_attn",
        False,
        "for module in model.modules():  # for models created later: timm.layers.set_fused_attn(True)\n"
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
FAST_PATHS = {"aten::_native_multi_head_attention": "num_head", "aten::_transformer_encoder_layer_fwd": "num_heads"}
RISK_OF_FAST_PATH = "the fast path is off for every layer of this process; rounding differs"
_NO_FAST_PATH = "torch.backends.mha.set_fastpath_enabled(False)"
# Of the time of attention, by how much less and more a CPU's fused kernel may save than is predicted, and the least
# that is predicted where advice is given. Scores that leave the second-level cache take longer than their ops are
# predicted to: seconds for each byte beyond so many that an op writes. Measured for 630 random shapes (17 to 600 keys,
# more than 8 queries, 6 to 128 features a head, with and without a mask, one thread): 80 % of the savings are in this
# range; of 395 that were predicted from 0.2 on one was a loss, of 56 from 0.15 to 0.2 six were.
_LESS_ON_CPU, _MORE_ON_CPU, _LEAST_SAVED_ON_CPU = 0.16, 0.1, 0.2
_CACHED_SCORES, _SCORES_S_PER_BYTE = 1 << 20, 0.09e-9
# In models the scores have left all caches, and some of their memory is fresh: so many seconds for each of these bytes,
# and of the page faults that are possible this part. With these figures 38 of 49 measured changes are in the range, six
# above and five below it, without them 34, ten and five; the ranges are narrower (docs/accuracy.md).
_SCORES_S_PER_BYTE_IN_MODELS, _FRESH_SCORES = 0.18e-9, 0.25
# A processor with AVX-512 and a fast cache goes through scores in a third of the reference's time (an EPYC of 2024, 24
# shapes); where the process keeps their memory too, no more than that is saved.
_FAST_PASSES = 0.35
_RISK = "attention weights are not returned or kept; pass a mask as attn_mask"
_RISK_OF_MASK = "with a boolean attn_mask a query whose keys are all masked gives 0"
_RISK_OF_BOTH = "pass what is added to the scores, with -inf where they are masked, as attn_mask"
_RISK_OF_SUM = "pass what is added to the scores as attn_mask; weights are not returned"
_RISK_OF_SCALED_SUM = "scale what is added, pass it as attn_mask; weights are not returned"
_RISK_OF_FACTOR = "multiply q by the factor and pass scale=1.0; weights are not returned"
_RISK_OF_FACTOR_AND_MASK = "multiply q by the factor, pass scale=1.0, and the mask or sum as attn_mask"
# Shorter sequences gain nothing from scores that stay in the cache.
_LEAST_KEYS = 1024
# On a CPU the softmax of a score, and the passes over it, take as long as so many multiplications (low, high); measured
# on an AVX-512 machine with one thread, 64 to 512 features, 1,024 to 4,096 keys.
_MACS_PER_SCORE = (80, 200)
# On a GPU: times that the scores are read or written.
_PASSES = 6
# The fused kernels of CUDA by type, the queries and keys of their blocks, which short sequences do not fill, and the
# share of the peak that full blocks reach. Smaller heads than `_LEAST_HEAD_SIZE` take as long as that size, shallower
# products than `_LEAST_DEPTH` as long as that depth, and passes over the scores reach `_REACHED_BANDWIDTH` of the
# bandwidth. Read off what the tables of the H200 predict for 9 shapes of 20 to 512 tokens and 16 to 64 features; not
# measured separately. Other types have no fused kernel. Which of two kernels is called depends on the version of torch.
_CUDA_KERNELS = {
    "float32": (("efficient",), 64, 0.43),
    "float16": (("cudnn", "flash"), 128, 0.27),
    "bfloat16": (("cudnn", "flash"), 128, 0.27),
}
_LEAST_HEAD_SIZE, _LEAST_DEPTH, _REACHED_BANDWIDTH = 64, 32, 0.6


@rule("attention-by-hand", family="fusion")
def attention_by_hand(evidence: Evidence) -> Iterator[Advice]:
    found = list(written_attentions(evidence))
    saved_on_cpu = {} if evidence.is_cuda else _saved_on_cpu(evidence, found)
    for op, ops, copies in found:
        scores = op.signature.outputs[0]
        # The products stay, in the same kernel: of the work, what is between them goes away, and so do the copies.
        # Of CUDA's kernels those that share keys take 16 bits.
        is_able = not evidence.is_cuda or op.signature.dtype in ("float16", "bfloat16")
        read = (ops[0].signature.inputs[-1], ops[-1].signature.inputs[-1])
        repeated = [copy for copy in copies if any(repeats_heads(copy, spec) for spec in read)]
        shares_keys = is_able and len(repeated) >= 2
        is_turned = _reads_turned(evidence, ops[0], ops[-1])
        whole, between = evidence.share([*copies, *ops]), evidence.share([*copies, *ops[1:-1]])
        calls = 1 if evidence.is_cuda else _calls_on_cpu(ops)
        if evidence.is_cuda:
            spared = between.value * (1 - between.calls) / max(whole.value * (1 - whole.calls), 1e-12)
            if is_turned:  # queries, keys and values are then copied, into the order that the fused kernel takes
                copied = 2 * (sum(spec.nbytes for spec in (*ops[0].signature.inputs, *ops[-1].signature.outputs)))
                spared *= max(0.0, 1 - copied / max(sum(map(moved, (*copies, *ops[1:-1]))), 1))
            saved = 1 - _time_on_cuda(evidence, op, ops, copies)
            if saved <= 0:
                continue  # 8,192 heads of 20 tokens and 16 features in float32: 29 % slower on an H200
            low, high = 0.5 * min(spared, saved), min(spared, saved)
        elif op.index not in saved_on_cpu:
            continue
        else:
            least, saved = saved_on_cpu[op.index]
            low, high = max(0.0, min(least, saved - _LESS_ON_CPU)), min(max(saved, 0.0) + _MORE_ON_CPU, 1.0)
        # Fused kernels take tensors of four dimensions. With five, MobileViT got 6 % slower, and 5 % faster with four;
        # with three, attention of up to 256 keys can take twice as long as the ops it replaces (CPU, one thread).
        rank = len(scores.shape)
        # A CPU's kernel takes masks of two or four dimensions. With three, as of a bias for each head, torch goes on op
        # by op: 128 keys took 50 % longer than the ops written out, and 18 % less with four.
        is_flat = _mask_taken(ops, has_heads=rank > _HEADS_RANK - 1) not in ("", "[None, :]")
        if rank != _HEADS_RANK:
            how = " on contiguous 4-D" if is_turned else " on 4-D"
            how += " q, k, v and mask" if is_flat else " q, k and v"
        elif is_turned:
            how = " on contiguous q, k, v and a 4-D mask" if is_flat else " on contiguous q, k and v"
        else:
            how = " with a 4-D attn_mask" if is_flat else ""
        change = None if shares_keys or rank > 4 else _change(evidence, op, ops)
        scale = _scale(ops, op)
        words = f"use scaled_dot_product_attention{how}: scores are not stored"
        if shares_keys:
            words = "use scaled_dot_product_attention with enable_gqa=True, and keys and values not repeated"
        elif change is None and scale is not None and not isclose(scale, _inner_size(ops[0]) ** -0.5, rel_tol=1e-3):
            words = f"use scaled_dot_product_attention with scale={scale:.4g}{how.replace(' with', ' and')}"
        yield Advice(
            rule="attention-by-hand",
            where=Where(op.module, tuple(step.index for step in ops)),
            evidence={"ops": len(ops), "scores_shape": list(scores.shape), "scores_bytes": scores.nbytes},
            recommendation=words,
            change=change,
            expected_gain=whole.gain(
                low,
                high,
                "the passes over the scores between the two products go away",
                fewer_calls=max(0.0, 1 - calls / (len(copies) + len(ops))),
            ),
            risk=_risk(ops),
            confidence="high",
        )


def _risk(ops: Sequence[OpRecord]) -> str:
    names = [op.op.rstrip("_") if len(op.signature.inputs) > 1 else "" for op in ops[1:-1]]
    softmax = next(at for at, op in enumerate(ops) if op.op == "aten::_softmax")
    first = next((at for at, name in enumerate(names, 1) if name in _MASKS), softmax)
    # A factor that is a tensor, such as a temperature for each head, cannot be passed to the function.
    if first < softmax and {"aten::mul", "aten::div"}.intersection(names[: first - 1]):
        return _RISK_OF_FACTOR_AND_MASK
    if _hides(ops):
        return _RISK_OF_BOTH if _adds(ops) else _RISK_OF_MASK
    if _adds(ops):
        is_scaled = any(op.op.rstrip("_") in ("aten::mul", "aten::div") for op in ops[first:softmax])
        return _RISK_OF_SCALED_SUM if is_scaled else _RISK_OF_SUM
    return _RISK_OF_FACTOR if {"aten::mul", "aten::div"}.intersection(names) else _RISK


def _mask_taken(ops: Sequence[OpRecord], *, has_heads: bool) -> str:
    """What gives the masks of the scores, and the terms that are added to them, a number of dimensions that the fused
    kernels take."""
    inside = {op.index for op in ops}
    masks = [op for op in ops[1:-1] if op.op.rstrip("_") in _MASKS]
    ranks = {
        len(spec.shape)
        for op in masks
        for spec, source in zip(op.signature.inputs, op.producers, strict=True)
        if source not in inside and spec.shape
    }
    if 3 in ranks:
        return "[None]" if has_heads else "[:, None]"
    return "[None, :]" if 1 in ranks else ""


@rule("attention-fast-path", family="fusion")
def attention_fast_path(evidence: Evidence) -> Iterator[Advice]:
    """Attention layers of torch in evaluation. Their fast path writes the scores to memory: on a CPU always, on a GPU
    where the weights are wanted, as they are unless the caller says otherwise."""
    layers = [op for op in evidence.flow.named(*FAST_PATHS) if len(op.signature.inputs[0].shape) == 3]
    longest = max((op.signature.inputs[0].shape[1] for op in layers), default=0)
    reads = {op.index for op in layers if reads_weights(evidence, op)}
    # The switch on a CPU is for all layers; without the fast path those that give weights get slower.
    is_mixed = len({op.op for op in layers}) > 1 and any(map(gives_weights, layers))
    if longest < _LEAST_KEYS or (not evidence.is_cuda and (reads or is_mixed)):
        return
    for op in layers:
        given, heads = op.signature.inputs[0], op.signature.attributes.get(FAST_PATHS[op.op])
        batch, keys, _ = given.shape
        if not isinstance(heads, int) or op.index in reads or causal_mask_of_layer(evidence, op) is not None:
            continue  # for a causal mask there is `causal-mask`
        if evidence.is_cuda and (not gives_weights(op) or keys < _LEAST_KEYS):
            continue
        scores = batch * heads * keys * keys
        if evidence.is_cuda:
            spared = _PASSES * scores * given.itemsize
            share = spared / (spared + moved(op))
            low, high = share / 2, share
        else:
            low, high = (each * scores / (each * scores + op.cost.macs) for each in _MACS_PER_SCORE)
        wanted = ["pass need_weights=False"] if gives_weights(op) else []
        wanted += [] if evidence.is_cuda else ["turn off torch's fast path for attention"]
        yield Advice(
            rule="attention-fast-path",
            where=Where(op.module, (op.index,), source=evidence.call_line(op.module)),
            evidence={"op": op.op, "scores_bytes": scores * given.itemsize, "gives_weights": gives_weights(op)},
            recommendation=f"{' and '.join(wanted)}: {longest:,} × {longest:,} scores are written to memory",
            change=without_fast_path(op, switches_off=not evidence.is_cuda),
            expected_gain=evidence.share([op]).gain(low, high, "the passes over the scores go away"),
            risk=RISK_OF_FAST_PATH,
            confidence="medium",
        )


def gives_weights(op: OpRecord) -> bool:
    """Whether an attention layer returns its weights, for which torch writes out all scores."""
    return op.signature.attributes.get("need_weights") is True


def without_fast_path(op: OpRecord, *, switches_off: bool = True) -> Patch:
    """Fused attention for a layer of torch's in evaluation: without its weights, and without the fast path."""
    switch = f"\n{_NO_FAST_PATH}\n" if switches_off else ""
    if gives_weights(op):
        return Patch(_HOOK, ("path",), ((op.module,),), f"{_WITHOUT_WEIGHTS}{switch}")
    return Patch(_NO_FAST_PATH)


def is_causal(evidence: Evidence, op: OpRecord, at: int) -> bool:
    """Whether a mask of booleans shows, or one of numbers hides, what a causal one does."""
    return triangle(evidence, op, at) == (SEEN if op.signature.inputs[at].dtype == "bool" else HIDDEN)


def causal_mask_of_layer(evidence: Evidence, op: OpRecord) -> int | None:
    """The place of the causal mask among the inputs of a layer on the fast path: it is as large as the scores of the
    tokens, for every head."""
    inputs, tokens = op.signature.inputs, op.signature.inputs[0].shape[-2]
    places = [at for at, spec in enumerate(inputs) if len(spec.shape) == 4 and spec.shape[-2:] == (tokens, tokens)]
    is_there = bool(places) and evidence.dataflow.is_constant_input(op, places[-1])
    return places[-1] if is_there and is_causal(evidence, op, places[-1]) else None


def reads_weights(evidence: Evidence, op: OpRecord) -> bool:
    """Whether the attention weights that a layer gives are used."""
    if not gives_weights(op):
        return False
    result, *rest = [output.shape for output in op.signature.outputs]
    read = [
        spec.shape
        for user in evidence.flow.users(op)
        for spec, source in zip(user.signature.inputs, user.producers, strict=False)
        if source == op.index
    ]
    # With as many keys as features both have one shape: the result is read first.
    return evidence.flow.is_result(op) or any(read.count(shape) > (shape == result) for shape in rest)


def written_attentions(evidence: Evidence) -> Iterator[tuple[OpRecord, list[OpRecord], list[OpRecord]]]:
    """The softmax of each attention, its ops from the first product to the second, and the copies of queries, keys and
    values that only these products read: repeated for every head, or turned into the order that a product wants."""
    runs = evidence.dataflow.first_runs
    kept = frozenset(evidence.capture.run.kept_ops)
    again = {*runs, *runs.values()}  # `repeated-work` covers copies that each step makes of the same keys
    for softmax in evidence.flow.named("aten::_softmax"):
        scores = softmax.signature.outputs[0]
        if len(scores.shape) < 3:
            continue
        axis = int(softmax.signature.attributes.get("dim") or 0) % len(scores.shape)
        head, tail = _walk(evidence, softmax, -1, scores.numel), _walk(evidence, softmax, 1, scores.numel)
        if not head or not tail or not _is_over_keys(softmax, axis, head, tail):
            continue
        ops, inner = [*reversed(head), softmax, *tail], _inner_size(head[-1])
        if not all(_is_fusable(evidence, op, ops, at) for at, op in enumerate(ops)):
            continue
        # A module that keeps its scores or weights in an attribute has them to show; a fused kernel has none to keep.
        # Freed, their memory goes back to Linux, to be cleared again: a model with 12 such layers got 8 % slower.
        if not kept.isdisjoint(op.index for op in ops[:-1]):
            continue
        # Short sequences gain by the copies that their products make of queries and keys, which fused attention does
        # not.
        copied = [op for op in evidence.flow.sources(ops[0]) if op.op == "aten::clone" and op.index not in again]
        _, queries, keys = _sizes(softmax, ops)
        is_tiny = not evidence.is_cuda and (keys <= _TOO_FEW_KEYS or queries <= _TOO_FEW_QUERIES)
        # Keys of each query's own, as of its neighbours, are as large as their scores times the features.
        has_own_keys = queries == 1 < scores.shape[-2]
        if is_tiny or has_own_keys or (scores.shape[axis] < inner and not (len(copied) > 1 and inner <= _MOST_COPIED)):
            continue
        copies: list[OpRecord] = []
        todo = [source for product in (ops[0], ops[-1]) for source in evidence.flow.sources(product)]
        while todo:
            near = todo.pop()
            if near.op == "aten::clone" and evidence.flow.only_reader(near) is not None:
                copies.append(near)
                todo += evidence.flow.sources(near)
        yield softmax, ops, copies


def _saved_on_cpu(
    evidence: Evidence, found: Sequence[tuple[OpRecord, list[OpRecord], list[OpRecord]]]
) -> dict[int, tuple[float, float]]:
    """By the index of the softmax, the part of the work of an attention that the fused kernel saves: on a fast
    processor that keeps memory, and on the reference. Left out where a line of code saves too little time in all of its
    attentions together, or loses some."""
    pace, threads = evidence.peaks.pace if evidence.peaks else None, evidence.capture.environment.threads
    by_line: dict[str | None, list[tuple[int, float, float]]] = {}
    saved_s, work_s = dict[int, tuple[float, float]](), dict[int, float]()
    times = evidence.times
    whole_s = times.total + _FRESH_SCORES * sum(times.fresh_s.values())
    for softmax, ops, copies in found:
        if _inner_size(ops[0]) != _value_size(ops):
            continue  # a CPU's fused kernel takes heads of one size; LeViT, with two, got 9 % slower
        if _joins_masks(ops):
            continue  # a triangular attention of 64 tokens with two biases got 6 to 17 % slower
        if evidence.is_train and _trains_unfused(evidence, ops):
            continue  # of 128 tokens: 12 % slower with dropout, 26 % with a bias that is trained
        whole, products = evidence.share([*copies, *ops]), evidence.share([ops[0], ops[-1]])
        ops_s, products_s = (share.value * (1 - share.calls) * times.total for share in (whole, products))
        # Each op that is not in place writes the scores elsewhere.
        written = [op.signature.outputs[0].nbytes for op in ops[:-1] if not op.op.endswith("_")]
        beyond = 0 if evidence.op_times else sum(max(0, nbytes - _CACHED_SCORES) for nbytes in written)
        sizes, is_masked = _sizes(softmax, ops), _hides(ops) or _adds(ops)
        is_turned = _reads_turned(evidence, ops[0], ops[-1])
        copied = sizes[0] * (sizes[1] + 2 * sizes[2]) * _inner_size(ops[0]) if is_turned else 0
        fused_s = attention_seconds(sizes, products_s, pace, threads, is_masked=is_masked, copied=copied)
        fewer_calls = 1 - _calls_on_cpu(ops) / (len(copies) + len(ops))
        calls_s = whole.value * whole.calls * times.total
        before_s = ops_s + beyond * _SCORES_S_PER_BYTE + calls_s
        by_line.setdefault(softmax.source, []).append((softmax.index, before_s, fused_s + (1 - fewer_calls) * calls_s))
        fresh_s = _FRESH_SCORES * sum(times.fresh_s.get(op.index, 0.0) for op in ops)
        more_s = beyond * _SCORES_S_PER_BYTE_IN_MODELS
        fast_s = products_s + _FAST_PASSES * (ops_s - products_s) + beyond * _SCORES_S_PER_BYTE
        saved_s[softmax.index], work_s[softmax.index] = (fast_s - fused_s, ops_s + more_s + fresh_s - fused_s), ops_s
        whole_s += more_s
    saved = dict[int, tuple[float, float]]()
    for each in by_line.values():
        before_s, fused_s = sum(before for _, before, _ in each), sum(fused for *_, fused in each)
        if fused_s <= (1 - _LEAST_SAVED_ON_CPU) * before_s:
            for index, *_ in each:
                share = times.total / whole_s / max(work_s[index], 1e-12)
                least, most = saved_s[index]
                saved[index] = min(least * share, 1.0), min(most * share, 1.0)
    return saved


def _joins_masks(ops: Sequence[OpRecord]) -> bool:
    """Whether several terms are added to the scores that broadcast to all of them: the function takes one mask, and to
    make that is the pass that it saves."""
    inside, sizes = {op.index for op in ops}, list[tuple[int, ...]]()
    for op in ops[1:-1]:
        for spec, source in zip(op.signature.inputs, op.producers, strict=True):
            if source not in inside and spec.numel > 1 and op.op.rstrip("_") in _MASKS:
                steps = spec.stride or (1,) * len(spec.shape)
                sizes.append(tuple(size if step else 1 for size, step in zip(spec.shape, steps, strict=True))[::-1])
    joined = prod(max(each) for each in zip_longest(*sizes, fillvalue=1))
    return len(sizes) > 1 and 2 * joined >= ops[0].signature.outputs[0].numel


def _trains_unfused(evidence: Evidence, ops: Sequence[OpRecord]) -> bool:
    """Whether weights are dropped, or a term of the scores has a gradient: a CPU's fused kernel takes neither, and the
    function runs one op after the other."""
    inside, dataflow = {op.index for op in ops}, evidence.dataflow
    has_dropout = any(op.op in _DROPOUTS for op in ops)
    names = {name for op in ops[1:-1] for name in op.weights} & evidence.params.keys()
    return (
        has_dropout
        or any(evidence.params[name].trainable for name in names)
        or any(
            source not in inside
            and (op.index, at) not in dataflow.input_reads
            and not dataflow.is_constant_input(op, at)
            for op in ops[1:-1]
            if op.op.rstrip("_") in _MASKS
            for at, source in enumerate(op.producers)
        )
    )


def _calls_on_cpu(ops: Sequence[OpRecord]) -> int:
    """What the function calls: it chooses a kernel first, and makes numbers of a boolean mask."""
    return 2 + _hides(ops)


def _hides(ops: Sequence[OpRecord]) -> bool:
    """Whether scores are masked by booleans, of which the function makes numbers."""
    return any(step.op.rstrip("_") in ("aten::masked_fill", "aten::where") for step in ops[1:-1])


def _adds(ops: Sequence[OpRecord]) -> bool:
    return any(
        step.op.rstrip("_") in ("aten::add", "aten::sub") and len(step.signature.inputs) > 1 for step in ops[1:-1]
    )


def _sizes(softmax: OpRecord, ops: Sequence[OpRecord]) -> tuple[int, int, int]:
    """Heads of all samples, queries and keys."""
    made, scores = ops[0].signature.outputs[0], softmax.signature.outputs[0]
    keys = scores.shape[int(softmax.signature.attributes.get("dim") or 0) % len(scores.shape)]
    queries = made.shape[-2] * made.shape[-1] // max(keys, 1)
    return made.numel // max(queries * keys, 1), queries, keys


def _time_on_cuda(evidence: Evidence, softmax: OpRecord, ops: Sequence[OpRecord], copies: Sequence[OpRecord]) -> float:
    """The time of the fused kernel as a share of the ops that it replaces: predicted for the named device, otherwise
    from its blocks. 0 if the device is unknown, 1 if it has no such kernel."""
    made, scores = ops[0].signature.outputs[0], softmax.signature.outputs[0]
    known = _CUDA_KERNELS.get(ops[0].signature.dtype or "")
    if known is None or not made.numel:
        return 1.0
    (rows, queries, keys), width = _sizes(softmax, ops), _inner_size(ops[0])
    if evidence.kernel_s is not None:
        batch = scores.shape[0] if len(scores.shape) > 3 and not rows % scores.shape[0] else 1
        heads = (batch, rows // batch)
        query, key, value = (
            TensorSpec((*heads, length, size), made.dtype)
            for length, size in ((queries, width), (keys, width), (keys, _value_size(ops)))
        )
        output = TensorSpec((*heads, queries, _value_size(ops)), made.dtype)
        read = query.nbytes + key.nbytes + value.nbytes
        signature = replace(
            ops[0].signature, category="attention", inputs=(query, key, value), outputs=(output,), attributes={},
            cost=Cost(2 * ops[0].cost.macs, 4 * ops[0].cost.macs, read, output.nbytes),
        )  # fmt: skip
        names = [f"aten::_scaled_dot_product_{kernel}_attention" for kernel in known[0]]
        fused = [evidence.kernel_s(replace(ops[0], signature=replace(signature, op=name))) for name in names]
        before = sum(map(evidence.kernel_s, (*copies, *ops)))
        return min(fused) / before if before else 0.0
    return _time_in_blocks(evidence, (rows, queries, keys), ops, copies)


def _time_in_blocks(
    evidence: Evidence, sizes: tuple[int, int, int], ops: Sequence[OpRecord], copies: Sequence[OpRecord]
) -> float:
    """The same for `sizes` heads, queries and keys, by the roofline of the device."""
    dtype, (rows, queries, keys) = ops[0].signature.dtype or "", sizes
    _, block, reached = _CUDA_KERNELS[dtype]
    peak = None if evidence.least_time is None else evidence.least_time.peaks.rate(dtype)
    if not peak:
        return 0.0
    scores_s = 2 * rows * -(-queries // block) * -(-keys // block) * block**2 / (reached * peak)  # for each feature
    seconds, products = evidence.times.seconds, ((ops[0], _inner_size(ops[0])), (ops[-1], _value_size(ops)))
    fused_s = sum(scores_s * -(-width // _LEAST_HEAD_SIZE) * _LEAST_HEAD_SIZE for _, width in products)
    before_s = sum(seconds.get(op.index, 0.0) for op in (*copies, *ops))
    if not evidence.op_times:
        before_s = sum(seconds.get(op.index, 0.0) / _REACHED_BANDWIDTH for op in (*copies, *ops[1:-1]))
        # Products go in blocks as well, which their bytes and FLOP do not say.
        before_s += sum(
            max(seconds.get(product.index, 0.0), scores_s * max(width, _LEAST_DEPTH)) for product, width in products
        )
    return fused_s / before_s if before_s else 0.0


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


def _value_size(ops: Sequence[OpRecord]) -> int:
    """The features of a value: of the second product's result for each query of each head."""
    keys = ops[-1].cost.macs // max(ops[-1].signature.outputs[0].numel, 1)
    queries = ops[0].signature.outputs[0].numel // max(keys, 1)
    return ops[-1].signature.outputs[0].numel // max(queries, 1)


def _walk(
    evidence: Evidence, near: OpRecord, direction: int, elements: int, left: int = _MOST_BETWEEN
) -> list[OpRecord]:
    """From the softmax to the product before or behind it, each op reading what its neighbour made."""
    flow = evidence.flow
    # Scores that are read elsewhere, or given back, have to be computed; those that are thrown away need not be.
    if direction > 0:
        kept = evidence.capture.run.kept_ops
        neighbours = [user for user in flow.users(near) if not flow.is_dead(user) or user.index in kept]
        if len(neighbours) != 1 or flow.is_result(near):
            return []
    else:
        made = [source for source in flow.sources(near) if source.signature.outputs[0].numel == elements]
        neighbours = [source for source in made if flow.is_kept_for(source, near)]
    for op in neighbours:
        # The first product makes the scores without a weight; the second reads them.
        specs = op.signature.outputs if direction < 0 else op.signature.inputs
        if op.op in _PRODUCTS and not op.weights and any(spec.numel == elements for spec in specs):
            return [op]
        if op.category in _BETWEEN and left:
            further = _walk(evidence, op, direction, elements, left - 1)
            if further:
                return [op, *further]
    return []


def _is_fusable(evidence: Evidence, op: OpRecord, ops: Sequence[OpRecord], at: int) -> bool:
    """Whether a fused kernel can do what op `at` of an attention does to the scores or weights that it gets from the op
    before it: scale and mask the scores, drop weights."""
    name, given, values = op.op.rstrip("_"), op.signature.inputs, op.signature.attributes
    if not at or name == "aten::_softmax":
        return True
    before = ops[at - 1].index
    if op.producers.count(before) != 1:
        return False  # squared, or multiplied by its own transpose
    place, others = op.producers.index(before), [n for n, source in enumerate(op.producers) if source != before]
    is_scaled = name in ("aten::mul", "aten::div") and (place == 0 or name == "aten::mul")
    if op is ops[-1] or (name in _COPIES and place == len(given) - 1):
        return True
    softmax_at = next(n for n, each in enumerate(ops) if each.op == "aten::_softmax")
    if at > softmax_at:
        # The output can be scaled in place of the weights. What is hidden before the softmax is 0 behind it.
        masks = [evidence.dataflow.base(each, 1) for each in ops[:softmax_at] if each.op in _FILLS]
        is_hidden = op.op in _FILLS and evidence.dataflow.base(op, 1) in masks and values.get("value") == 0
        is_hidden = is_hidden and None not in masks
        is_number = all(given[n].numel == 1 for n in others)
        return is_hidden or (is_scaled and is_number) or name in (*_DROPOUTS, "aten::nan_to_num")
    if name == "aten::masked_fill":
        return place == 0 and is_hiding(values.get("value"))
    if name == "aten::where":
        fill = next((n for n in others if n), 0)
        is_constant = given[fill].numel == 1 or evidence.dataflow.is_constant_input(op, fill)
        return place > 0 and is_constant and is_hiding(fill_value(evidence.flow.source(op, fill)))
    if name in ("aten::add", "aten::sub"):
        return place == 0 or name == "aten::add"
    # A factor that is the same for all keys can scale the queries.
    axis = int(ops[softmax_at].signature.attributes.get("dim") or 0)
    from_end = axis - len(ops[softmax_at].signature.outputs[0].shape) if axis >= 0 else axis
    return is_scaled and all(_size(given[n], from_end) == 1 for n in others)


def _size(spec: TensorSpec, from_end: int) -> int:
    """Of a dimension of a tensor that is broadcast: 1 where its elements are repeated."""
    if len(spec.shape) < -from_end:
        return 1
    return 1 if spec.stride is not None and not spec.stride[from_end] else spec.shape[from_end]


def _change(evidence: Evidence, softmax: OpRecord, ops: Sequence[OpRecord]) -> Patch | SourceEdit | None:
    """A switch of the library or layer that the attention is from, or else an edit of the code that writes it out."""
    attribute, is_set, switch = _SWITCHES.get(evidence.library_of(softmax) or "", ("", False, ""))
    if switch:
        has_switch = evidence.model is not None and evidence.model.has(softmax.module, attribute, is_set=is_set)
        return Patch(switch) if has_switch else None
    record = evidence.modules.get(softmax.module)
    # Classes of that name are common: torch's keeps the output projection and one of two forms of the others.
    own = {name.removeprefix(f"{softmax.module}.") for name in evidence.params if name.startswith(f"{softmax.module}.")}
    is_torch = "out_proj.weight" in own and not own.isdisjoint(("in_proj_weight", "q_proj_weight"))
    if record is not None and record.type == "MultiheadAttention" and is_torch:
        return Patch(_HOOK, ("path",), ((softmax.module,),), _WITHOUT_WEIGHTS)
    first, last = evidence.code_at(ops[0]), evidence.code_at(ops[-1])
    if first is None or last is None or first[0] is not last[0] or ops[0].op not in _PLAIN_PRODUCTS:
        return None
    if softmax.signature.attributes.get("dim") not in (-1, len(softmax.signature.outputs[0].shape) - 1):
        return None
    masks = [each for each in ops if each.op.rstrip("_") in _MASKS and len(each.signature.inputs) > 1]
    is_causal = len(masks) == 1 and _hides_later(evidence, masks[0], {op.index for op in ops})
    *_, queries, keys = ops[0].signature.outputs[0].shape
    scale = _scale(ops, softmax)
    if scale is None or ops[0].signature.dtype != ops[-1].signature.dtype:
        return None
    has_default = isclose(scale, _inner_size(ops[0]) ** -0.5, rel_tol=1e-3)
    # Only tensors with a dimension for heads, and rows in order, have fused kernels.
    has_heads = len(softmax.signature.outputs[0].shape) > 3
    prefix = f"{ops[0].module}.".removeprefix(".")
    layers = {
        path.removeprefix(prefix): each.type for path, each in evidence.modules.items() if path.startswith(prefix)
    }
    written = _WrittenAttention(
        first[0],
        layers,
        scale=scale,
        has_default=has_default,
        is_causal=is_causal and queries == keys,
        taken=("" if has_heads else "[:, None]") + (".contiguous()" if _are_turned(evidence, ops[0], ops[-1]) else ""),
        given=".squeeze(1)" if not has_heads else "",
        mask_taken=_mask_taken(ops, has_heads=has_heads),
    )
    return written.edit(first[1], last[1])


def _hides_later(evidence: Evidence, masked: OpRecord, scores: set[int]) -> bool:
    """Whether an op hides the scores of the keys behind each query, and no others."""
    place = next(at for at, source in enumerate(masked.producers) if source in scores)
    if masked.op == "aten::where":
        return triangle(evidence, masked, 0) == (SEEN if place == 1 else HIDDEN)
    return triangle(evidence, masked, 1 - place) == HIDDEN


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


def _reads_turned(evidence: Evidence, first: OpRecord, second: OpRecord) -> bool:
    """Whether queries, keys or values are in an order that the fused kernel does not take: the features of a head do
    not lie next to each other. A product may have copied them first, in any order of the other dimensions."""
    size = _inner_size(first)
    for product, at, features in ((first, -2, -1), (first, -1, -2), (second, -1, -1)):
        place = len(product.signature.inputs) + at
        source, spec = evidence.flow.source(product, place), product.signature.inputs[place]
        if source is not None and source.op == "aten::clone":
            spec = source.signature.inputs[0]
            sizes = list(zip(spec.shape, spec.stride or contiguous_stride(spec.shape), strict=True))
            steps = [step for length, step in [each for each in sizes if each[0] > 1][-2:] if length == size]
            if len(steps) == 1 and steps[0] != 1:
                return True
        elif features == -2 if spec.stride is None else spec.stride[features] != 1:
            return True
    return False


def repeats_heads(copy: OpRecord, keys: TensorSpec) -> bool:
    """Whether it writes each head of keys or values several times in a row, as attention can share them: not samples or
    tokens, and not all heads after all heads. `keys`: what attention reads, tokens and features in any order."""
    if copy.op not in _REPEATS or not copy.signature.inputs or not copy.signature.outputs:
        return False
    read, made, last = copy.signature.inputs[0], copy.signature.outputs[0], keys.shape[-2:]
    if copy.op == "aten::clone":
        steps = read.stride or contiguous_stride(read.shape)
        again = [at for at, (size, step) in enumerate(zip(read.shape, steps, strict=True)) if size > 1 and not step]
        if len(again) != 1 or not again[0]:
            return False
        # Behind the heads, with tokens and features behind them, or with tokens before the heads.
        before, behind = read.shape[: again[0]], read.shape[again[0] + 1 :]
        return behind in (last, last[::-1]) or (len(before) > 1 and sorted((before[1], *behind)) == sorted(last))
    if copy.op == "aten::repeat_interleave":
        return copy.signature.attributes.get("dim") in (1, -3)
    # In which order others take several heads is not known; a single one has no order.
    is_single = len(read.shape) == len(made.shape) == _HEADS_RANK and read.shape[1] == 1 < made.shape[1]
    return is_single and (read.shape[0], *read.shape[2:]) == (made.shape[0], *made.shape[2:])


def is_fixed_mask(source: Source, node: ast.AST | None) -> bool:
    """Whether code has one mask in every call, which begins with the first query: a triangle made on the spot, or what
    the module keeps. A caller may pass another mask, and rows from a later one on are those behind a cache."""
    if isinstance(node, ast.Call) and called(node) in ("tril", "triu"):
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        diagonals = [each for each in given if each is not receiver(node, source)]
        return all(isinstance(each, ast.Constant | ast.UnaryOp) for each in diagonals)
    if isinstance(node, ast.Subscript):
        starts = [each.lower for each in ast.walk(node.slice) if isinstance(each, ast.Slice) and each.lower]
        return not starts and is_fixed_mask(source, node.value)
    if isinstance(node, ast.Compare):
        return is_fixed_mask(source, node.left)
    if isinstance(node, ast.UnaryOp):
        return is_fixed_mask(source, node.operand)
    if isinstance(node, ast.Call):  # a method of the mask, or a cast
        return is_fixed_mask(source, receiver(node, source))
    if isinstance(node, ast.Attribute):
        return source.text(node.value) == "self"
    function = source.enclosing(node, ast.FunctionDef)
    if not isinstance(node, ast.Name) or function is None:
        return False
    stores = _names(function, node.id, ast.Store)
    assigned = source.parents[stores[0]] if len(stores) == 1 else None
    is_given = any(isinstance(each, ast.arg) and each.arg == node.id for each in ast.walk(function.args))
    return isinstance(assigned, ast.Assign) and not is_given and is_fixed_mask(source, assigned.value)


@dataclass
class _WrittenAttention:
    """Attention written out in somebody's forward, to be rewritten as one call of scaled_dot_product_attention. Follows
    the scores from the first product to the second, through the expressions and statements of one block. `layers`: the
    types of the layers of the module, by name; `scale`: what the scores are multiplied with, in this run, which may
    have the function's default, one over the root of the head's size; `factors`: the same as it is written; `optional`:
    what is None where there is no mask; `taken` and `given`: what is done to queries, keys and values, and to the
    result, for a dimension of heads that the code does without; `mask_taken`: the same for the mask."""

    source: Source
    layers: Mapping[str, str]
    scale: float
    has_default: bool
    is_causal: bool
    taken: str = ""
    given: str = ""
    mask_taken: str = ""
    mask: str | None = None
    optional: str | None = None
    is_mask_fixed: bool = False
    dropout: str | None = None
    drops_when: str = "self.training"
    is_softmax_seen: bool = False
    factors: list[tuple[ast.operator, ast.expr]] = field(default_factory=list)
    gone: list[Span] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def edit(self, first: int, last: int) -> SourceEdit | None:
        """None where the scores are used elsewhere, or the code has a form that says too little."""
        source, functional = self.source, self.source.functional
        starts = [node for node in source.expressions(first) if source.product(node) is not None]
        if not starts or functional is None:
            return None
        start = starts[0]
        end = self._follow(start)
        factors, ends = source.product(start), None if end is None else source.product(end)
        if factors is None or end is None or ends is None or not end.lineno <= last <= (end.end_lineno or 0):
            return None
        if any(self._is_read_later(name, end) for name in self.names):
            return None
        tensors = [self._operand(factors[0]), self._key(factors[1]), self._operand(ends[1])]
        arguments = [", ".join(f"{tensor}{self.taken}" for tensor in tensors)]
        if self.is_causal and (self.mask is None or self.is_mask_fixed):
            arguments.append("is_causal=True")
        elif self.mask is not None:
            is_name = not self.mask_taken or self.mask.isidentifier()
            mask = f"{self.mask if is_name else f'({self.mask})'}{self.mask_taken}"
            is_given = self.optional is None or mask == self.optional
            arguments.append(f"attn_mask={mask if is_given else f'None if {self.optional} is None else {mask}'}")
        if self.dropout is not None:
            arguments.append(f"dropout_p={self.dropout} if {self.drops_when} else 0.0")
        if (scale := self._scale_argument()) is not None:
            arguments.append(f"scale={scale}")
        name = f"{functional}.scaled_dot_product_attention"
        return source.edit([*self.gone, *source.replaced_by_call(end, name, arguments, self.given)])

    def _scale_argument(self) -> str | None:
        """As it is written: a number of this model may be the root of the head's size by chance. None for the default,
        where the code takes it from the shape of a tensor or does not scale the scores at all."""
        if self.has_default and all(self._is_root_of_size(factor) for _, factor in self.factors):
            return None
        if not self.factors:
            return str(float(f"{self.scale:.6g}"))
        (operator, factor), *others = self.factors
        text = self.source.operand(factor) if others or isinstance(operator, ast.Div) else self.source.text(factor)
        text = f"1 / {text}" if isinstance(operator, ast.Div) else text
        for operator, factor in others:
            text += f" {'/' if isinstance(operator, ast.Div) else '*'} {self.source.operand(factor)}"
        return text

    def _is_root_of_size(self, factor: ast.expr) -> bool:
        """Whether it is computed from the last dimension of a tensor: `math.sqrt(q.size(-1))`, `q.shape[-1] ** -0.5`,
        or such a size that one statement of the function gives a name."""
        if isinstance(factor, ast.Call) and called(factor) in ("sqrt", "float", "pow") and factor.args:
            return self._is_root_of_size(factor.args[0])
        if isinstance(factor, ast.BinOp):
            if isinstance(factor.op, ast.Div) and isinstance(factor.left, ast.Constant):  # 1 / math.sqrt(…)
                return factor.left.value == 1 and self._is_root_of_size(factor.right)
            return isinstance(factor.op, ast.Pow) and self._is_root_of_size(factor.left)
        if isinstance(factor, ast.Name):
            function = self.source.enclosing(factor, ast.FunctionDef)
            places = [] if function is None else _names(function, factor.id, ast.Store)
            return len(places) == 1 and self._names_last_size(places[0])
        return self.source.text(factor).endswith((".size(-1)", ".shape[-1]"))

    def _names_last_size(self, name: ast.Name) -> bool:
        """`d = q.size(-1)`, `d = math.sqrt(q.shape[-1])`, or the last of `b, h, n, d = q.shape`."""
        around = self.source.parents[name]
        if isinstance(around, ast.Assign):
            return self._is_root_of_size(around.value)
        statement = self.source.parents[around]
        if not isinstance(around, ast.Tuple) or not isinstance(statement, ast.Assign):
            return False
        return around.elts[-1] is name and self.source.text(statement.value).endswith((".shape", ".size()"))

    def _follow(self, node: ast.expr) -> ast.expr | None:
        """The second product, from the first one up through what is done with the scores."""
        while True:
            around = self.source.parents[node]
            factors = self.source.product(around)
            if factors is not None and isinstance(around, ast.expr):
                return around if factors[0] is node and self.is_softmax_seen else None
            if isinstance(around, ast.Assign | ast.AugAssign):
                further = self._next_use(around)
                if further is None:
                    return None
                node = further
            elif isinstance(around, ast.expr) and self._passes(around, node):
                node = around
            else:
                return None

    def _passes(self, step: ast.expr, scores: ast.expr) -> bool:
        """Notes what a step does to the scores; False for one that has no place in fused attention."""
        if isinstance(step, ast.BinOp):
            other = step.right if step.left is scores else step.left
            is_divisor = isinstance(step.op, ast.Div) and step.right is scores
            return not is_divisor and self._combines(step.op, other)
        call = self.source.parents[step]
        if isinstance(step, ast.Attribute):  # a method: the call around it says what it does
            return isinstance(call, ast.Call) and call.func is step
        if not isinstance(step, ast.Call) or (step.func is not scores and scores not in step.args[:1]):
            return False
        name = called(step)
        if name == "softmax" or (name.endswith("softmax") and "log" not in name):
            self.is_softmax_seen = True
            return True
        if "drop" in name and self.is_softmax_seen:
            if isinstance(step.func, ast.Attribute) and self.source.text(step.func.value) == "self":
                # Stochastic depth and an identity in place of a dropout have no p.
                self.dropout = f"self.{name}.p" if self.layers.get(name) == "Dropout" else None
            else:
                given = [*step.args[1:2], *(keyword.value for keyword in step.keywords if keyword.arg == "p")]
                self.dropout = self.source.operand(given[0]) if given else None
            return self.dropout is not None
        if name in ("masked_fill", "masked_fill_") and not self.is_softmax_seen:
            given = step.args if receiver(step, self.source) not in step.args else step.args[1:]
            return len(given) == 2 and self._masks(self._kept(given[0]), given[0])
        return name in _CASTS

    def _combines(self, operator: ast.operator, other: ast.expr) -> bool:
        if isinstance(operator, ast.Mult | ast.Div):
            self.factors.append((operator, other))
            return self.mask is None and not self.is_softmax_seen  # the mask would be scaled with the scores
        return (
            isinstance(operator, ast.Add) and not self.is_softmax_seen and self._masks(self.source.text(other), other)
        )

    def _masks(self, text: str, node: ast.expr) -> bool:
        is_first, self.mask, self.is_mask_fixed = self.mask is None, text, is_fixed_mask(self.source, node)
        return is_first

    def _kept(self, hidden: ast.expr) -> str:
        """Where attention looks, from where it does not."""
        if isinstance(hidden, ast.UnaryOp) and isinstance(hidden.op, ast.Invert):
            return self.source.text(hidden.operand)
        zero = isinstance(hidden, ast.Compare) and isinstance(hidden.ops[0], ast.Eq)
        if zero and isinstance(hidden, ast.Compare) and self.source.text(hidden.comparators[0]) in ("0", "False"):
            return f"{self.source.text(hidden.left)} != 0"
        return f"~{self.source.operand(hidden)}"

    def _operand(self, node: ast.expr) -> str:
        return self.source.operand(node) if self.taken else self.source.text(node)

    def _key(self, turned: ast.expr) -> str:
        """The second factor as attention wants it: not transposed."""
        if isinstance(turned, ast.Attribute) and turned.attr == "mT":
            return self._operand(turned.value)
        if isinstance(turned, ast.Call) and called(turned) == "transpose":
            given = [self.source.text(argument) for argument in turned.args[-2:]]
            key = receiver(turned, self.source)
            if key is not None and sorted(given) in (["-1", "-2"], ["2", "3"]):
                return self._operand(key)
        return f"{self.source.operand(turned)}.transpose(-2, -1)"

    def _next_use(self, statement: ast.Assign | ast.AugAssign) -> ast.expr | None:
        """Where the variable that a statement assigns is read, if once; the statement goes."""
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if len(targets) != 1 or not isinstance(targets[0], ast.Name):
            return None
        name, gone = targets[0].id, self.source.deleted(statement)
        self.names.add(name)
        following, reads = self._first_read(statement, name)
        while isinstance(following, ast.If) and gone and self._is_optional(following, name):
            gone += self.source.deleted(following)
            following, reads = self._first_read(following, name)
        is_compound = isinstance(following, ast.If | ast.For | ast.While | ast.With | ast.Try)
        if following is None or len(reads) != 1 or is_compound or not gone:
            return None
        self.gone += gone
        if isinstance(following, ast.AugAssign) and reads[0] is following.target:  # `scores *= scale`
            return reads[0] if self._combines(following.op, following.value) else None
        is_written = isinstance(following, ast.Assign) and bool(_names(following.targets[0], name, ast.Store))
        return reads[0] if is_written or self._first_read(following, name)[0] is None else None

    def _is_read_later(self, name: str, end: ast.expr) -> bool:
        """Whether a statement behind the second product reads a variable of the scores before it is assigned again:
        also one behind the block, for which the variable may have had another value before."""
        function, last = self.source.enclosing(end, ast.FunctionDef), end.end_lineno or end.lineno
        reads, stores = (
            [] if function is None else [each.lineno for each in _names(function, name, context) if each.lineno > last]
            for context in (ast.Load, ast.Store)
        )
        return bool(reads) and (not stores or min(reads) <= min(stores))

    def _first_read(self, statement: ast.stmt, name: str) -> tuple[ast.stmt | None, list[ast.Name]]:
        """The first statement behind one in its block that reads a variable, and where it does."""
        following = self.source.next_statement(statement)
        while following is not None and not _names(following, name):
            following = self.source.next_statement(following)
        return following, [] if following is None else _names(following, name)

    def _is_optional(self, branch: ast.If, name: str) -> bool:
        """Whether it is `if mask is not None: scores = scores.masked_fill(mask == 0, value)`, or such a dropout; notes
        the mask and the dropout as what they are with the condition."""
        test, inner, mask, dropout = branch.test, branch.body[0], self.mask, self.dropout
        is_test = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot) and not branch.orelse
        if not isinstance(test, ast.Compare) or not is_test or len(branch.body) != 1:
            return False
        if isinstance(inner, ast.AugAssign):
            is_known = self._combines(inner.op, inner.value)
        elif isinstance(inner, ast.Assign) and len(scores := _names(inner.value, name)) == 1:
            inside = self.source.parents[scores[0]]
            is_known = self._passes(inner.value, inside if isinstance(inside, ast.Attribute) else scores[0])
        else:
            return False
        given = self.source.text(test.left)
        if self.mask != mask:
            self.optional = given
        if self.dropout != dropout:
            self.drops_when = f"{given} is not None and self.training"
        is_changed = (self.mask, self.dropout) != (mask, dropout)
        return is_known and is_changed and not self.is_causal


def _names(node: ast.AST, name: str, context: type[ast.expr_context] = ast.Load) -> list[ast.Name]:
    """Where a variable is read, or written; `x += 1` reads it too."""
    found = [each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id == name]
    is_both = isinstance(node, ast.AugAssign) and context is ast.Load
    return found if is_both else [each for each in found if isinstance(each.ctx, context)]
