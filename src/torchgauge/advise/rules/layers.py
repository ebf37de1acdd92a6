"""Neighbouring layers of which one undoes, repeats or inflates what the other does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchgauge.advise.code import Patch, Source, SourceEdit, receiver
from torchgauge.advise.dataflow import same_axis
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.op_time import UNSURE
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.attention import (
    FAST_PATHS,
    RISK_OF_FAST_PATH,
    causal_mask_of_layer,
    gives_weights,
    is_causal,
    is_fixed_mask,
    reads_weights,
    repeats_heads,
    without_fast_path,
)
from torchgauge.advise.rules.folding import LINEAR_OPS, are_alone
from torchgauge.facts import FREE, OpRecord, TensorSpec, contiguous_stride

_SCALES = {"aten::mul", "aten::mul_", "aten::div", "aten::div_"}
_SHIFTS = {"aten::add", "aten::add_", "aten::sub", "aten::sub_"}
_TRIANGLES = {"aten::tril", "aten::triu", "aten::tril_", "aten::triu_"}
_LOOKUPS = {"aten::embedding", "aten::index", "aten::index_select", "aten::gather", "aten::take"}
_POINTWISE = ("elementwise", "activation")
_MOST_BETWEEN = 12
_ATTENTION = ("scaled_dot_product_attention",)
_MASK_AT = 3
# kvSplitSize of torch's FlashAttentionKernel.cpp, the fused attention of a CPU.
_KEYS_PER_BLOCK = 512
# Tokens from which on the fast path's scores take longer than fused attention.
_LEAST_TOKENS = 128
_FOLD = """\
layer, affine = model.get_submodule(first), model.get_submodule(second)
with torch.no_grad():
    zeros = layer.weight.new_zeros(1, layer.weight.shape[0], *[1] * (layer.weight.dim() - 2))
    shift = affine(zeros).flatten()
    scale = affine(zeros + 1).flatten() - shift
    bias = 0 if layer.bias is None else layer.bias
    layer.bias = torch.nn.Parameter(shift + scale * bias)
    layer.weight.mul_(scale.reshape(-1, *[1] * (layer.weight.dim() - 1)))
model.set_submodule(second, torch.nn.Identity())
"""
# Running statistics were collected with the bias.
_DROP_BIAS = """\
layer, norm = model.get_submodule(first), model.get_submodule(second)
if norm.running_mean is not None:
    norm.running_mean.sub_(layer.bias.detach())
layer.bias = None
"""


@rule("affine-after-layer", family="fusion")
def affine_after_layer(evidence: Evidence) -> Iterator[Advice]:
    """A scale or shift by channel behind a layer: a frozen norm written by hand, a layer scale."""
    if evidence.is_train:
        return
    for layer in evidence.flow.steps:
        is_layer = layer.category == "convolution" or layer.op in LINEAR_OPS
        if not is_layer or not layer.weights or not _runs_once(evidence, layer) or not are_alone(evidence, [layer]):
            continue
        chain = _affine(evidence, layer)
        if not any(op.op in _SCALES for op in chain):
            continue
        # A module that does nothing but scale and shift: what it makes of zeros and ones says by how much. Roots and
        # products of its statistics do not read data.
        path, record = chain[0].module, evidence.modules.get(layer.module)
        is_known = record is not None and record.type in ("Linear", "Conv1d", "Conv2d", "Conv3d")
        rest = [op for op in evidence.forward if op.module == path and op.status != FREE and op not in chain]
        is_whole = all(op.index in evidence.dataflow.constants for op in rest) and path != layer.module
        runs_once = path in evidence.modules and evidence.modules[path].calls == 1
        is_apart = bool(path) and not layer.module.startswith(f"{path}.")
        can_fold = is_known and is_whole and runs_once and is_apart
        yield Advice(
            rule="affine-after-layer",
            where=Where(path, (layer.index, *(op.index for op in chain))),
            evidence={"layer": layer.module, "ops": [op.op for op in chain]},
            recommendation="fold this scale by channel into the layer before it: inference does not change it",
            change=Patch(_FOLD, ("first", "second"), ((layer.module, path),)) if can_fold else None,
            expected_gain=evidence.share([*chain, *_made_for(evidence, chain)]).gain(
                0.7, 1.0, "the passes of the scale and the shift, and the ops that compute these"
            ),
            risk="for inference only; rounding differs in the last digits",
            confidence="high",
        )


def _made_for(evidence: Evidence, chain: list[OpRecord]) -> list[OpRecord]:
    """The ops that make a constant scale or shift of parameters, for this chain alone."""
    found, todo = dict[int, OpRecord](), list(chain)
    while todo:
        for source in evidence.flow.sources(todo.pop()):
            is_own = source.index in evidence.dataflow.constants and source.index not in found
            if is_own and all(user.index in found or user in chain for user in evidence.flow.users(source)):
                found[source.index] = source
                todo.append(source)
    return list(found.values())


def _runs_once(evidence: Evidence, op: OpRecord) -> bool:
    record = evidence.modules.get(op.module)
    return record is None or not op.module or record.calls == 1


def _affine(evidence: Evidence, layer: OpRecord) -> list[OpRecord]:
    """Behind the layer, each reading the one before alone."""
    chain: list[OpRecord] = []
    near, made = layer, layer.signature.outputs[0]
    from_last = len(made.shape) - 2 if layer.category == "convolution" else 0
    channels = made.shape[-1 - from_last]
    while (op := evidence.flow.only_reader(near)) is not None and op.op in _SCALES | _SHIFTS and len(chain) < 4:
        others = [at for at, source in enumerate(op.producers) if source != near.index]
        if len(others) != 1 or len(op.producers) != 2 or not evidence.dataflow.is_constant_input(op, others[0]):
            break
        # One number for each channel, along the dimension of the channels, which no view has moved.
        spec, read = op.signature.inputs[others[0]], op.signature.inputs[1 - others[0]]
        axis = same_axis(len(made.shape) - 1 - from_last, made, read)
        is_moved = read != made and axis != len(read.shape) - 1 - from_last
        place = len(spec.shape) - 1 - from_last
        if is_moved or not spec.numel == channels > 1 or place < 0 or spec.shape[place] != channels:
            break
        chain.append(op)
        near, made = op, op.signature.outputs[0]
    return chain


def is_resampling(op: OpRecord) -> bool:
    """Whether each result is a weighted mean of pixels of one channel: not a padding, a fold or a shuffle, nor
    samples at places that may lie beside the image (`grid_sample`), which are zeros."""
    return op.category == "resize" and "upsample_" in op.op


@rule("resample-before-pointwise", family="order")
def resample_before_pointwise(evidence: Evidence) -> Iterator[Advice]:
    """An image that is enlarged and then goes through a 1×1 convolution, which could work on the small one."""
    for op in evidence.flow.of_category("convolution"):
        before, given = evidence.flow.source(op), op.signature.attributes
        if before is None or not is_resampling(before) or not evidence.flow.is_kept_for(before, op):
            continue
        kernel = next((spec.shape for spec in op.signature.inputs[1:] if len(spec.shape) == 4), ())
        is_plain = not given.get("transposed") and not any(given.get("padding") or ())
        if not is_plain or set(given.get("stride") or (1,)) != {1} or kernel[2:] != (1, 1):
            continue
        small, large = before.signature.inputs[0].numel, before.signature.outputs[0].numel
        channels_in, channels_out = op.signature.inputs[0].shape[1], op.signature.outputs[0].shape[1]
        if large <= small or channels_out > channels_in:
            continue
        # Of the time of both, a share that depends on which takes longer, and that is known to within `UNSURE`.
        saved, both, of_conv = 1 - small / large, evidence.share([op, before]), evidence.share([op]).value
        times = [of_conv * factor / (of_conv * factor + both.value - of_conv) for factor in (1 / UNSURE, UNSURE)]
        shares = sorted(saved * part + (1 - channels_out / channels_in) * (1 - part) for part in times)
        yield Advice(
            rule="resample-before-pointwise",
            where=Where(op.module, (before.index, op.index)),
            evidence={"resampling": before.op, "pixels_saved_share": saved},
            recommendation="put the 1×1 convolution before the upsampling: the result is the same, on fewer pixels",
            change=_swapped(evidence, before, op),
            expected_gain=both.gain(
                0.8 * shares[0],
                shares[1],
                "the convolution on fewer pixels, the upsampling of fewer channels",
                fewer_calls=0.0,
            ),
            risk="rounding differs in the last digits",
            confidence="high",
        )


def _swapped(evidence: Evidence, resize: OpRecord, conv: OpRecord) -> Patch | SourceEdit | None:
    """Neighbours in a Sequential change places; so do two statements `x = f(x)`, and calls one inside the other."""
    parent, _, first = resize.module.rpartition(".")
    holder, _, second = conv.module.rpartition(".")
    record = evidence.modules.get(parent)
    are_digits = first.isdigit() and second.isdigit()
    if record is not None and record.type == "Sequential" and holder == parent and are_digits:
        if int(second) != int(first) + 1:
            return None
        swap = "both = model.get_submodule(path)\nboth[first], both[second] = both[second], both[first]"
        return Patch(swap, ("path", "first", "second"), ((parent, int(first), int(second)),))
    before, after = evidence.code_at(resize), evidence.code_at(conv)
    if before is None or after is None or before[0] is not after[0]:
        return None
    source = before[0]
    if before[1] == after[1]:
        # `conv(interpolate(x, …))` becomes `interpolate(conv(x), …)`.
        for inner in source.calls(before[1], "interpolate", "upsample"):
            outer = source.parents[inner]
            if isinstance(outer, ast.Call) and outer.args == [inner] and not outer.keywords and inner.args:
                moved = source.replaced(inner.args[0], f"{source.text(outer.func)}({source.text(inner.args[0])})")
                return source.edit(source.without_around(outer, inner) + moved)
        return None
    one, other = source.statement(before[1]), source.statement(after[1])
    if one is None or other is None or source.next_statement(one) is not other:
        return None
    if _step_of(source, one) is None or _step_of(source, one) != _step_of(source, other):
        return None
    return source.edit(source.replaced(one, source.text(other)) + source.replaced(other, source.text(one)))


def _step_of(source: Source, statement: ast.stmt) -> str | None:
    """The variable of `x = f(x, …)`."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call) or not statement.value.args:
        return None
    name, given = source.text(statement.targets[0]), source.text(statement.value.args[0])
    return name if name == given and len(statement.targets) == 1 else None


@rule("causal-mask", family="attention")
def causal_mask(evidence: Evidence) -> Iterator[Advice]:
    """A causal mask that is made as a tensor, where attention takes a flag."""
    for op in evidence.flow.of_category("attention"):
        at = None if op.op in FAST_PATHS else _mask_place(op)
        if at is None or not evidence.dataflow.is_constant_input(op, at) or not is_causal(evidence, op, at):
            continue
        mask, found, change = op.signature.inputs[at], evidence.call_of(op, _ATTENTION), None
        if found is not None:
            source, call = found
            masks = [*call.args[_MASK_AT:], *(keyword for keyword in call.keywords if keyword.arg == "attn_mask")]
            given = masks[0].value if len(masks) == 1 and isinstance(masks[0], ast.keyword) else next(iter(masks), None)
            is_sure = len(masks) == 1 and is_fixed_mask(source, given)
            change = source.edit(source.replaced(masks[0], "is_causal=True")) if is_sure else None
        # Blocks of scores above the diagonal are skipped. A CPU's kernel takes 512 keys as one block: with fewer, only
        # the mask is not read.
        if not evidence.is_cuda and op.signature.inputs[1].shape[-2] <= _KEYS_PER_BLOCK:
            low, high, how = 0.02, 0.15, "the mask is not read; with so few keys no scores are skipped"
        else:
            low, high, how = 0.1, 0.5, "half of the products of the scores and values"
        yield Advice(
            rule="causal-mask",
            where=Where(op.module, (op.index,)),
            evidence={"mask_shape": list(mask.shape), "mask_bytes": mask.nbytes},
            recommendation="pass is_causal=True instead of the mask: no matrix is made, half of the scores are skipped",
            change=change,
            expected_gain=evidence.share([op]).gain(low, high, how, fewer_calls=0.0),
            risk="only where queries and keys start at the same position",
            confidence="high",
        )
    # torch's fast path: a layer in one op, with a mask for every head and sample. The switch is for all layers.
    layers = evidence.flow.named(*FAST_PATHS)
    for op in () if any(reads_weights(evidence, each) for each in layers) else layers:
        at = causal_mask_of_layer(evidence, op)
        inputs, tokens = op.signature.inputs, op.signature.inputs[0].shape[-2]
        if at is None:
            continue
        # With fewer tokens the scores stay in the cache: 48 to 96 were 7 % slower to 9 % faster (CPU, 9 layers).
        if not evidence.is_cuda and tokens < _LEAST_TOKENS:
            continue
        # Measured on one core: of the layer's time 0.7 to 2.4 times the share that scores and values have in its
        # arithmetic (11 of 15 layers of 128 to 512 tokens, the others 0 to 0.2 and 2.8; 41 of 42 attentions that
        # gave their weights before, the other 0.5); on a GPU it was not measured.
        part = min(2 * inputs[0].numel * tokens / max(op.cost.macs, 1), 1.0)
        low, high = (0.3, 1.0) if evidence.is_cuda else (0.7, 2.0)
        is_layer = op.op == "aten::_transformer_encoder_layer_fwd"
        how = "scores and mask are not written" + (", half of the scores are skipped" if is_layer else "")
        switch = "pass need_weights=False and switch" if gives_weights(op) else "switch"
        yield Advice(
            rule="causal-mask",
            where=Where(op.module, (op.index,)),
            evidence={"mask_shape": list(inputs[at].shape), "mask_bytes": inputs[at].nbytes},
            recommendation=f"{switch} off torch's fast path: it writes out every score, fused attention does not",
            # Without its fast path an encoder finds out by itself that its mask is causal.
            change=without_fast_path(op),
            expected_gain=evidence.share([op]).gain(low * part, min(high * part, 0.9), how, fewer_calls=0.0),
            risk=RISK_OF_FAST_PATH,
            confidence="high",
        )


@rule("expanded-mask", family="attention")
def expanded_mask(evidence: Evidence) -> Iterator[Advice]:
    """A mask that is written out for every head or query, though attention broadcasts it."""
    for op in evidence.flow.of_category("attention"):
        at = _mask_place(op)
        near = None if at is None else evidence.flow.source(op, at)
        mask, made = None if at is None else op.signature.inputs[at], list[OpRecord]()
        while near is not None and mask is not None and near.signature.outputs[0].numel >= mask.numel:
            made.append(near)
            read = [spec for spec in near.signature.inputs if spec.numel > 1]
            # Of two tensors (rows against columns) or a table (a bias by distance) a matrix is made, not written out.
            is_spread = len(read) == 1 and near.op not in _LOOKUPS
            if is_spread and 2 * read[0].distinct_numel <= mask.numel:
                break
            near = evidence.flow.source(near) if len(read) == 1 else None
        if near is None or mask is None or not made or made[-1].op in _TRIANGLES:
            continue
        # What is written into a part of a matrix does not spread over it.
        if near.op.endswith("_") and near is not made[-1]:
            continue
        # Where it differs by query, as the one that hides whole rows does, its shape is another.
        rows = [spec for spec in made[-1].signature.inputs if spec.numel > 1]
        varies = [
            at for spec in rows for at, size in enumerate(spec.shape[::-1]) if size > 1 and _steps(spec)[::-1][at]
        ]
        of_keys = ", (batch, 1, 1, keys)" if 0 in varies and 1 not in varies else ""
        yield Advice(
            rule="expanded-mask",
            where=Where(op.module, (*(each.index for each in reversed(made)), op.index)),
            evidence={"mask_shape": list(mask.shape), "mask_bytes": mask.nbytes},
            recommendation=f"pass the mask unexpanded{of_keys}: attention broadcasts it",
            change=None,
            expected_gain=evidence.share(made).gain(0.8, 1.0, "the passes that write the mask out"),
            risk="none",
            confidence="high",
        )


def _steps(spec: TensorSpec) -> tuple[int, ...]:
    return spec.stride or contiguous_stride(spec.shape)


def _mask_place(op: OpRecord) -> int | None:
    """The last input that is as large as the scores: queries by keys."""
    inputs = op.signature.inputs
    given = [inputs[0], inputs[min(1, len(inputs) - 1)]]
    if any(len(spec.shape) < 2 for spec in given):  # somebody's kernel, with the lengths of packed sequences
        return None
    queries, keys = (spec.shape[-2] for spec in given)
    places = [at for at, spec in enumerate(inputs) if at and spec.shape[-2:] == (queries, keys)]
    return places[-1] if places and inputs[places[-1]].shape[-2:] != inputs[0].shape[-2:] else None


@rule("repeated-keys", family="attention")
def repeated_keys(evidence: Evidence) -> Iterator[Advice]:
    """Keys and values that are copied for every head that shares them."""
    for op in evidence.flow.of_category("attention"):
        # Of CUDA's kernels only flash attention shares keys, and it takes 16 bits: in float32 `enable_gqa` falls back
        # to plain products (measured on an H200: 1.7 times the time).
        if evidence.is_cuda and op.signature.dtype not in ("float16", "bfloat16"):
            continue
        # A mask that is repeated has its own advice.
        both = dict.fromkeys(op.producers[1:3])
        sources = [evidence.flow.op(index) for index in both if index is not None]
        copies = [source for source in sources if source is not None and repeats_heads(source, op.signature.inputs[1])]
        if len(copies) < len(both):
            continue  # attention shares keys and values, or neither
        yield Advice(
            rule="repeated-keys",
            where=Where(op.module, (*(copy.index for copy in copies), op.index)),
            evidence={"copied_bytes": sum(copy.signature.outputs[0].nbytes for copy in copies)},
            recommendation="pass enable_gqa=True with unrepeated keys and values: heads share them without copies",
            change=_shared(evidence, copies, op),
            expected_gain=evidence.share(copies).gain(0.5, 1.0, "the copies of keys and values"),
            risk="on a GPU the fused kernels need a recent version of torch",
            confidence="high",
        )


def _shared(evidence: Evidence, copies: list[OpRecord], op: OpRecord) -> SourceEdit | None:
    """The flag, and the calls of repeat_interleave left out."""
    found = evidence.call_of(op, _ATTENTION)
    calls = [evidence.call_of(copy, ("repeat_interleave",)) for copy in copies]
    if found is None or len(copies) != 2 or not all(calls):
        return None
    source, call = found
    spans = source.with_keyword(call, "enable_gqa", "True")
    for where, repeat in filter(None, calls):
        if where is not source:
            return None
        around, repeated, gone = source.parents[repeat], receiver(repeat, source), []
        if isinstance(around, ast.Assign) and repeated is not None:
            is_same = source.text(around.targets[0]) == source.text(repeated)
            gone = source.deleted(around) if is_same else []
        spans += gone or source.without(repeat)
    return source.edit(spans)


@rule("cancelling-permutes", family="copies")
def cancelling_permutes(evidence: Evidence) -> Iterator[Advice]:
    """A tensor that is permuted, goes through pointwise ops, and is permuted back."""
    for near, between, back in cancelling_copies(evidence):
        # Without the calls that permute and those that copy, at both lines.
        there, behind, change = evidence.code_at(near), evidence.code_at(back), None
        if there is not None and behind is not None and there[0] is behind[0]:
            source, lines = there[0], sorted({there[1], behind[1]})
            names = ("permute", "transpose", "movedim", "swapaxes")
            permutes = [call for line in lines for call in source.calls(line, *names)]
            copies = [call for line in lines for call in source.calls(line, "contiguous", "clone")]
            if len(permutes) == 2 and len(copies) <= 2:
                change = source.edit([span for call in (*permutes, *copies) for span in source.without(call)])
        yield Advice(
            rule="cancelling-permutes",
            where=Where(back.module, (near.index, back.index)),
            evidence={"ops_between": len(between), "bytes_moved": near.cost.bytes_read * 2 + back.cost.bytes_read * 2},
            recommendation="remove both permutes: the ops between them work in any layout",
            change=change,
            expected_gain=evidence.share([near, back]).gain(0.8, 1.0, "the two copies"),
            risk="none",
            confidence="medium",
        )


def cancelling_copies(evidence: Evidence) -> Iterator[tuple[OpRecord, list[OpRecord], OpRecord]]:
    """The copy that permutes a tensor, the pointwise ops behind it, and the copy that permutes it back."""
    for back in evidence.flow.named("aten::clone"):
        between: list[OpRecord] = []
        near = evidence.flow.source(back)
        while (
            near is not None
            and near.category in _POINTWISE
            and near.op != "aten::clone"
            and len(between) < _MOST_BETWEEN
        ):
            between.append(near)
            near = evidence.flow.source(near)
        if near is None or near.op != "aten::clone" or not _undoes(evidence, near, back):
            continue
        shape, inside = near.signature.outputs[0].shape, {near.index, back.index, *(op.index for op in between)}
        # Ops on views and slices, as of a scan in place, are written for this order of dimensions, and so is an operand
        # from elsewhere, as a vector by channel. Somebody else may read what is between the copies in this order.
        is_alike = all(
            spec.numel == 1 or (spec.shape == shape and source in inside)
            for op in between
            for spec, source in zip(op.signature.inputs, op.producers, strict=True)
        )
        is_private = all(
            not evidence.flow.is_result(op) and inside.issuperset(user.index for user in evidence.flow.users(op))
            for op in (near, *between)
        )
        if is_alike and is_private and all(op.signature.outputs[0].shape == shape for op in between):
            yield near, between, back


def _undoes(evidence: Evidence, there: OpRecord, back: OpRecord) -> bool:
    """The shape before the first is that behind the second, and the order in which the second reads undoes that of the
    first; dimensions of one element have no order."""
    source = evidence.flow.source(there)
    if source is None or source.signature.outputs[0].shape != back.signature.outputs[0].shape:
        return False
    orders = []
    for read in (there.signature.inputs[0], back.signature.inputs[0]):
        if read.stride is None:
            return False
        steps = [step for step, size in zip(read.stride, read.shape, strict=True) if size > 1]
        orders.append([sorted(steps, reverse=True).index(step) for step in steps])
    first, second = orders
    return len(first) == len(second) and [first[at] for at in second] == list(range(len(first)))


@rule("bias-before-norm", family="unused")
def bias_before_norm(evidence: Evidence) -> Iterator[Advice]:
    """The norm takes the mean away, and with it the bias."""
    reported: set[str] = set()
    for norm in evidence.flow.of_category("normalization"):
        if "batch_norm" not in norm.op and "group_norm" not in norm.op:
            continue
        layer = evidence.flow.source(norm)
        is_layer = layer is not None and (layer.category == "convolution" or layer.op in LINEAR_OPS)
        if layer is None or not is_layer or not evidence.flow.is_kept_for(layer, norm):
            continue
        # Instance norm is a batch norm over one sample whose channels are those of all samples.
        made, read = layer.signature.outputs[0], norm.signature.inputs[0]
        axis = 1 if layer.category == "convolution" else len(made.shape) - 1
        channels, groups = made.shape[axis], norm.signature.attributes.get("group")
        is_instance = axis == 1 and read.shape[:2] == (1, made.shape[0] * channels)
        is_by_channel = is_instance or (axis == 1 and made == read) or same_axis(1, read, made) == axis
        if not is_by_channel or groups not in (None, channels):
            continue
        vectors = [name for name in layer.weights if _size(evidence, name) == (channels,)]
        if not vectors or vectors[0] in reported:
            continue
        reported.add(vectors[0])
        nbytes = sum(evidence.params[name].spec.nbytes for name in vectors)
        share = min(nbytes / max(evidence.totals.param_bytes or 0, 1), 1.0)
        types = [evidence.modules[op.module].type if op.module in evidence.modules else "" for op in (layer, norm)]
        is_torch = bool(layer.module and norm.module) and (types[0] == "Linear" or types[0].startswith("Conv"))
        is_torch = is_torch and types[1].startswith(("BatchNorm", "InstanceNorm")) and _runs_once(evidence, layer)
        yield Advice(
            rule="bias-before-norm",
            where=Where(
                layer.module,
                (layer.index, norm.index),
                vectors[0],
                evidence.model.made_at(layer.module) if evidence.model is not None else None,
            ),
            evidence={"norm": norm.module, "bias_bytes": nbytes},
            recommendation="leave out the bias: the norm behind the layer subtracts it again",
            change=Patch(_DROP_BIAS, ("first", "second"), ((layer.module, norm.module),)) if is_torch else None,
            expected_gain=Gain("param_bytes", share, share, "the bytes of the bias"),
            risk="none for an untrained model",
            confidence="high",
        )


def _size(evidence: Evidence, name: str) -> tuple[int, ...]:
    return evidence.params[name].spec.shape if name in evidence.params else ()
