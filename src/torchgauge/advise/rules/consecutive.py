"""Products in a row that one product can replace, or that cost less in another order."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from torchgauge.advise.code import Patch
from torchgauge.advise.dataflow import same_axis
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import LEAST_PREDICTED_TIME, rule
from torchgauge.advise.rules.broadcast import CLOSED
from torchgauge.advise.rules.folding import LINEAR_OPS, NORMS, are_alone, are_chosen_apart, is_pointwise_convolution
from torchgauge.advise.rules.narrow import with_size
from torchgauge.facts import Cost, OpRecord, TensorSpec

_PRODUCTS = {"aten::mm", "aten::bmm"}
CONVOLUTIONS = {"Conv1d", "Conv2d", "Conv3d"}

# Of the multiply-adds of the two, what must go away. Less does not pay for another weight in the checkpoint.
_LEAST_SAVED = 0.25
# Positions from which on the multiply-adds take longer than to read the weight once.
_MANY_ROWS = 64
# Rows of a bilinear layer, from which on to multiply its weight by a vector first is cheaper.
_LEAST_ROWS = 4
# Verification runs the same lines.
MERGE = """\
layer, after = model.get_submodule(first), model.get_submodule(second)
if layer.bias is not None or after.bias is not None:
    bias = 0 if layer.bias is None else after.weight @ layer.bias
    layer.bias = torch.nn.Parameter((bias + (0 if after.bias is None else after.bias)).detach())
layer.weight = torch.nn.Parameter((after.weight @ layer.weight).detach())
model.set_submodule(second, torch.nn.Identity())
"""
# The kernel of two convolutions in a row is the convolution of their kernels.
MERGE_CONVOLUTIONS = """\
layer, after = model.get_submodule(first), model.get_submodule(second)
kernel, flipped = layer.weight.transpose(0, 1), after.weight.flip(*range(2, after.weight.dim()))
steps = [s * d if k > 1 else 1 for k, s, d in zip(layer.kernel_size, layer.stride, after.dilation)]
edges, n = [(k - 1) * step for k, step in zip(after.kernel_size, steps)], len(steps)
weight = torch.convolution(kernel, flipped, None, [1] * n, edges, steps, False, [0] * n, 1).transpose(0, 1)
stride = [a * b for a, b in zip(layer.stride, after.stride)]
sizes = zip(layer.kernel_size, layer.stride, layer.dilation, after.dilation)
dilation = [a if k > 1 else s * b for k, s, a, b in sizes]
merged = type(layer)(*weight.shape[1::-1], weight.shape[2:], stride, padding, dilation)
bias = 0 if layer.bias is None else after.weight.flatten(2).sum(2) @ layer.bias
bias = weight.new_zeros(len(weight)) + bias + (0 if after.bias is None else after.bias)
merged.weight, merged.bias = torch.nn.Parameter(weight.detach()), torch.nn.Parameter(bias.detach())
model.set_submodule(first, merged.eval())
model.set_submodule(second, torch.nn.Identity())
"""
# A convolution of one channel, a batch norm or none, and a depthwise convolution along other dimensions, as the other
# way round. What the norm and the first add to a channel is the same at every position.
EXCHANGE_CONVOLUTIONS = """\
layer, after = model.get_submodule(first), model.get_submodule(second)
count, shape = after.out_channels, (-1, *[1] * (layer.weight.dim() - 1))
weight, bias = layer.weight, 0 if layer.bias is None else layer.bias
if norm is not None:
    bn = model.get_submodule(norm)
    scale = (bn.running_var + bn.eps).rsqrt() * (1 if bn.weight is None else bn.weight)
    weight, bias = weight * scale.view(shape), (bias - bn.running_mean) * scale + (0 if bn.bias is None else bn.bias)
    model.set_submodule(norm, torch.nn.Identity())
again = count // layer.out_channels
kind, sums = type(layer), after.weight.flatten(1).sum(1)
bias = sums * (weight.new_zeros(layer.out_channels) + bias).repeat_interleave(again)
across = kind(1, count, after.kernel_size, after.stride, dilation=after.dilation, bias=False)
along = kind(
    count, count, layer.kernel_size, layer.stride, layer.padding, layer.dilation, count, True, layer.padding_mode
)
across.weight = torch.nn.Parameter(after.weight.detach())
along.weight = torch.nn.Parameter(weight.repeat_interleave(again, 0).detach())
along.bias = torch.nn.Parameter((bias + (0 if after.bias is None else after.bias)).detach())
model.set_submodule(first, across.eval())
model.set_submodule(second, along.eval())
"""


@rule("consecutive-layers", family="fusion", least_time=LEAST_PREDICTED_TIME)
def consecutive_layers(evidence: Evidence) -> Iterator[Advice]:
    """Two linear layers or convolutions with nothing between them but views and dropout: their weights can be
    multiplied beforehand. A bottleneck, whose two thin layers cost less than the merged one, stays."""
    if evidence.is_train:
        return
    merged = set[int]()
    for second in evidence.flow.of_category("matmul", "convolution"):
        place = 1 if second.op == "aten::addmm" else 0
        first = evidence.flow.source(second, place)
        if first is None or first.index in merged or not evidence.flow.is_kept_for(first, second):
            continue
        if not _is_layer(evidence, first) or not _is_layer(evidence, second):
            continue
        found = _merged_from(first, second, place)
        if found is None:
            continue
        if not _are_for_each_other(evidence, [first, second]):
            continue
        # Multiply-adds and weight change alike. Of layers of few rows the weight is what takes time.
        kept, factor = found
        macs, both = int(kept.cost.macs * factor), first.cost.macs + second.cost.macs
        elements = [_weight_elements(evidence, op) for op in (first, second)]
        saved = 1 - macs / both
        if both < _MANY_ROWS * sum(elements):
            saved = min(saved, 1 - _weight_elements(evidence, kept) * factor / sum(elements))
        if saved < _LEAST_SAVED:
            continue
        before_s = sum(evidence.times.seconds.get(op.index, 0.0) for op in (first, second))
        after_s = None if evidence.is_cuda else evidence.seconds_of(_merged_op(first, second, kept, macs))
        if after_s is not None and before_s:
            saved = 1 - after_s / before_s
        if saved <= 0:
            continue
        merged.add(second.index)
        yield Advice(
            rule="consecutive-layers",
            where=Where(first.module, (first.index, second.index)),
            evidence={"layers": [first.module, second.module], "macs": both, "merged_macs": macs},
            recommendation="merge these two layers into one for inference: no activation lies between them",
            change=_merge(evidence, first, second),
            expected_gain=evidence.share([first, second]).gain(
                0.75 * saved, saved, "one product in place of two, and the tensor between them"
            ),
            risk="for inference only; rounding differs in the last digits",
            confidence="high",
        )


@rule("convolution-order", family="order", least_time=LEAST_PREDICTED_TIME)
def convolution_order(evidence: Evidence) -> Iterator[Advice]:
    """A convolution of one channel along one dimension, then a depthwise one along another, as over the time and the
    electrodes of an EEG. Both are linear, and the second makes fewer positions: it is cheaper first, on one channel."""
    if evidence.is_train:
        return
    for second in evidence.flow.of_category("convolution"):
        norm, first = None, evidence.flow.source(second)
        if first is not None and first.category == "normalization" and evidence.flow.is_kept_for(first, second):
            norm, first = first, evidence.flow.source(first)
        if first is None or not evidence.flow.is_kept_for(first, norm or second):
            continue
        if not _is_layer(evidence, first) or not _is_layer(evidence, second) or not _can_exchange(first, norm, second):
            continue
        ops = [first, second] if norm is None else [first, norm, second]
        if not _are_for_each_other(evidence, ops):
            continue
        across, along = _exchanged(first, second)
        macs, before = across.cost.macs + along.cost.macs, first.cost.macs + second.cost.macs
        saved = 1 - macs / before
        if saved < _LEAST_SAVED:
            continue
        before_s = sum(evidence.times.seconds.get(op.index, 0.0) for op in ops)
        after_s = [None if evidence.is_cuda else evidence.seconds_of(op) for op in (across, along)]
        if before_s and None not in after_s:
            saved = 1 - sum(filter(None, after_s)) / before_s
        if saved <= 0:
            continue
        yield Advice(
            rule="convolution-order",
            where=Where(first.module, tuple(op.index for op in ops)),
            evidence={
                "layers": [first.module, second.module],
                "norm": None if norm is None else norm.module,
                "macs": before,
                "exchanged_macs": macs,
            },
            recommendation="exchange these two convolutions for inference: the depthwise one first, on one channel",
            change=_exchange(evidence, first, norm, second),
            expected_gain=evidence.share(ops).gain(0.6 * saved, saved, "the convolutions with fewer multiply-adds"),
            risk="for inference only; rounding differs in the last digits",
            confidence="high",
        )


def _are_for_each_other(evidence: Evidence, ops: Sequence[OpRecord]) -> bool:
    """Whether nothing else needs these layers as they are: other ops, branches that this call left out, or methods,
    also one that returns what is between them (`features`)."""
    paths = [op.module for op in ops]
    is_alone = are_alone(evidence, [op for op in evidence.flow.steps if op.module in paths])
    if not is_alone or are_chosen_apart(evidence, paths):
        return False
    first, *_, last = (
        place and place[0].enclosing(place[0].statement(place[1]), ast.FunctionDef)
        for place in map(evidence.any_code_at, ops)
    )
    if first is not None and first is not last and not first.name.startswith(("_", "forward")):
        return False
    return evidence.model is None or not any(map(evidence.model.is_read_otherwise, paths))


def _can_exchange(first: OpRecord, norm: OpRecord | None, second: OpRecord) -> bool:
    """Whether the first makes channels of one and the second filters each alone, along different dimensions. A norm
    between them has running statistics. The second pads nothing: its zeros would lie behind the bias of the first."""
    known, given, made = first.signature.attributes, second.signature.attributes, first.signature.outputs[0]
    if any(not isinstance(each.get(name), list) for each in (known, given) for name in ("stride", "padding")):
        return False
    if made != second.signature.inputs[0] or known.get("transposed") or given.get("transposed"):
        return False
    if norm is not None and ("batch_norm" not in norm.op or norm.signature.attributes.get("training")):
        return False
    if norm is not None and not made == norm.signature.inputs[0] == norm.signature.outputs[0]:
        return False
    is_depthwise = given.get("groups") == made.shape[1] > 1 and first.signature.inputs[0].shape[1] == 1
    sizes = zip(first.signature.inputs[1].shape[2:], second.signature.inputs[1].shape[2:], strict=True)
    edges = zip(known["stride"], known["padding"], given["stride"], strict=True)
    is_apart = all(
        (one == 1 and stride == 1 and not padding) or (other == 1 and step == 1)
        for (one, other), (stride, padding, step) in zip(sizes, edges, strict=True)
    )
    return is_depthwise and is_apart and not any(given["padding"])


def _exchanged(first: OpRecord, second: OpRecord) -> tuple[OpRecord, OpRecord]:
    """The second convolution on the input of the first, and then the first, depthwise."""
    given, weight, made = first.signature.inputs[0], first.signature.inputs[1], second.signature.outputs[0]
    taps, across_taps = prod(weight.shape[2:]), prod(second.signature.inputs[1].shape[2:])
    # The length of a dimension is that behind the second where this one has taps or steps there.
    kept = zip(given.shape[2:], first.signature.outputs[0].shape[2:], made.shape[2:], strict=True)
    shape = (made.shape[0], made.shape[1], *(after if after != middle else size for size, middle, after in kept))
    between, wide = replace(made, shape=shape, stride=None), replace(weight, shape=(made.shape[1], *weight.shape[1:]))

    def with_specs(op: OpRecord, read: TensorSpec, kernel: TensorSpec, out: TensorSpec, groups: int) -> OpRecord:
        macs = out.numel * (taps if kernel is wide else across_taps)
        cost = Cost(macs, 2 * macs, read.nbytes + kernel.nbytes, out.nbytes)
        attributes = {**op.signature.attributes, "groups": groups}
        signature = replace(op.signature, inputs=(read, kernel), outputs=(out,), attributes=attributes, cost=cost)
        return replace(op, signature=signature, producers=op.producers[:2])

    across = with_specs(second, given, second.signature.inputs[1], between, 1)
    return across, with_specs(first, between, wide, made, made.shape[1])


def _exchange(evidence: Evidence, first: OpRecord, norm: OpRecord | None, second: OpRecord) -> Patch | None:
    """For layers of torch's own that run once."""
    paths = (first.module, None if norm is None else norm.module, second.module)
    records = [evidence.modules[path] for path in paths if path is not None]
    is_known = records[0].type == records[-1].type in CONVOLUTIONS and all(record.calls == 1 for record in records)
    if not is_known or (norm is not None and records[1].type not in NORMS):
        return None
    return Patch(EXCHANGE_CONVOLUTIONS, ("first", "norm", "second"), (paths,), "model.eval()")


@rule("product-order", family="order", least_time=LEAST_PREDICTED_TIME)
def product_order(evidence: Evidence) -> Iterator[Advice]:
    """`(a @ x) @ weight`, as in a layer over a graph, where the weight makes x narrower: `a @ (x @ weight)` is
    cheaper. The same for a convolution over what a product samples, and a bilinear layer with one vector."""
    yield from _sampled_convolutions(evidence)
    yield from _bilinear_with_one_vector(evidence)
    for layer in evidence.flow.named(*LINEAR_OPS):
        record, place = evidence.modules.get(layer.module), 1 if layer.op == "aten::addmm" else 0
        if record is not None and record.type in CLOSED:
            continue
        reader, product = layer, evidence.flow.source(layer, place)
        if product is not None and product.op == "aten::clone" and evidence.flow.is_kept_for(product, layer):
            reader, product = product, evidence.flow.source(product)
        if product is None or product.op not in _PRODUCTS or not evidence.flow.is_kept_for(product, reader):
            continue
        if len(product.signature.inputs) < 2:
            continue
        width, out = layer.signature.inputs[place].shape[-1], layer.signature.outputs[0].shape[-1]
        left, right = product.signature.inputs[-2:]
        # The channels are the innermost part of the columns of x, and still the innermost where the layer reads them.
        read = reader.signature.inputs[place if reader is layer else 0]
        is_inner = read.shape[-1] == width and right.shape[-1] % width == 0
        is_inner = is_inner and (read.stride is None or read.stride[-1] == 1)
        is_weight = bool(layer.weights) and layer.producers[place + 1] is None and out < width
        if not is_weight or not is_inner or evidence.dataflow.is_constant_input(product, len(product.producers) - 1):
            continue
        rows, middle = left.shape[-2:]
        first = layer.cost.macs * middle / rows
        saved = 1 - (first + product.cost.macs * out / width) / (layer.cost.macs + product.cost.macs)
        if saved < _LEAST_SAVED:
            continue
        yield Advice(
            rule="product-order",
            where=Where(layer.module, (product.index, layer.index)),
            evidence={"channels_in": width, "channels_out": out, "macs_saved_share": saved},
            recommendation="multiply by this layer's weight before the product in front of it: a @ (x @ weight)",
            change=None,
            expected_gain=evidence.share([product, layer]).gain(
                0.6 * saved, saved, "the first product on fewer channels"
            ),
            risk="add the bias after both products; rounding differs in the last digits",
            confidence="high",
        )


def _sampled_convolutions(evidence: Evidence) -> Iterator[Advice]:
    """`conv(x @ matrix)`, where the matrix makes many positions of few, as one that samples proposals of a sequence:
    the weight mixes channels, the matrix positions, so the weight can come first, on the few. The kernel has one
    position, or all, in each dimension."""
    for layer in evidence.flow.of_category("convolution"):
        given, product = layer.signature.attributes, evidence.flow.source(layer)
        if product is None or product.op not in _PRODUCTS or not evidence.flow.is_kept_for(product, layer):
            continue
        if len(product.signature.inputs) < 2:  # a matrix times itself
            continue
        read, kernel = layer.signature.inputs[0], layer.signature.inputs[1].shape
        made, (left, right) = product.signature.outputs[0], product.signature.inputs[-2:]
        is_plain = not given.get("transposed") and int(given.get("groups") or 1) == 1 and not any(given["padding"])
        sizes = zip(kernel[2:], given["stride"], read.shape[2:], strict=True)
        is_plain = is_plain and all(size == length or size == stride == 1 for size, stride, length in sizes)
        # The rows of the product are the channels, behind the samples; its columns the positions.
        positions = right.shape[-1]
        is_by_channel = read.stride is None and read.numel == made.numel and made.stride is None
        is_by_channel = is_by_channel and prod(read.shape[2:]) == positions and not left.shape[-2] % read.shape[1]
        if (
            not is_plain
            or not is_by_channel
            or evidence.dataflow.is_constant_input(product, len(product.producers) - 2)
        ):
            continue
        few, samples = left.shape[-1], read.shape[0]
        after = samples * few * kernel[0] * (kernel[1] * prod(kernel[2:]) + positions)
        saved = 1 - after / max(layer.cost.macs + product.cost.macs, 1)
        if saved >= _LEAST_SAVED:
            yield _ordered(
                evidence,
                product,
                layer,
                saved,
                "multiply by this convolution's weight before the product in front of it: on fewer positions",
            )


def _bilinear_with_one_vector(evidence: Evidence) -> Iterator[Advice]:
    """A bilinear layer whose one input is one vector, repeated for all rows of the other."""
    for op in evidence.flow.named("aten::_trilinear"):
        rows = op.signature.inputs[0].shape[0]
        strides = [spec.stride for spec in (op.signature.inputs[0], op.signature.inputs[2])]
        if rows >= _LEAST_ROWS and any(stride is not None and stride[0] == 0 for stride in strides):
            yield _ordered(
                evidence,
                op,
                op,
                1 - 1 / rows,
                "multiply the bilinear weight by the one vector that is repeated, then use matmul",
            )


def _ordered(evidence: Evidence, product: OpRecord, layer: OpRecord, saved: float, words: str) -> Advice:
    ops = [product] if product is layer else [product, layer]
    return Advice(
        rule="product-order",
        where=Where(layer.module, tuple(op.index for op in ops)),
        evidence={"macs_saved_share": saved},
        recommendation=words,
        change=None,
        expected_gain=evidence.share(ops).gain(0.6 * saved, saved, "the products with fewer factors"),
        risk="add the bias after both products; rounding differs in the last digits",
        confidence="high",
    )


def _is_layer(evidence: Evidence, op: OpRecord) -> bool:
    """A module of torch's with a weight that is a parameter as it is, or a functional call with one."""
    record = evidence.modules.get(op.module)
    is_known = op.op in LINEAR_OPS or op.category == "convolution"
    if not is_known or record is None or not op.cost.macs:
        return False
    place = 2 if op.op == "aten::addmm" else 1
    is_weight = len(op.producers) > place and op.producers[place] is None and bool(op.weights)
    return is_weight and (record.type == "Linear" or record.type.startswith("Conv"))


def _weight_elements(evidence: Evidence, op: OpRecord) -> int:
    return max(evidence.params[name].spec.numel for name in op.weights if name in evidence.params)


def _channels(op: OpRecord) -> int:
    return op.signature.outputs[0].shape[1 if op.category == "convolution" else -1]


def _merged_from(first: OpRecord, second: OpRecord, place: int) -> tuple[OpRecord, float] | None:
    """The layer whose output or whose kernel the merged one keeps, and how many times its multiply-adds that one has;
    None where the two are not one layer."""
    made, read, given = first.signature.outputs[0], second.signature.inputs[place], second.signature.attributes
    axis = same_axis(1 if second.category == "convolution" else len(read.shape) - 1, read, made)
    if axis != (1 if first.category == "convolution" else len(made.shape) - 1) or read.numel != made.numel:
        return None
    if any(int(op.signature.attributes.get("groups") or 1) != 1 for op in (first, second)):
        return None
    middle = _channels(first)
    if second.op in LINEAR_OPS or is_pointwise_convolution(second):
        return first, _channels(second) / middle
    if second.category != "convolution" or first.category != "convolution" or read.shape != made.shape:
        return None
    kernel = _merged_kernel(first, second)
    if kernel is None or given.get("transposed") or first.signature.attributes.get("transposed"):
        return None
    elements = first.signature.inputs[0].shape[1] * prod(kernel)
    return second, elements / (middle * prod(second.signature.inputs[1].shape[2:]))


def _merged_op(first: OpRecord, second: OpRecord, kept: OpRecord, macs: int) -> OpRecord:
    """The op of the merged layer: that of the first with the channels of the second, or that of the second with the
    input of the first and the kernel of both."""
    signature, is_convolution = kept.signature, kept.category == "convolution"
    inputs, outputs = list(signature.inputs), signature.outputs
    place = 2 if kept.op == "aten::addmm" else 1
    if kept is first:
        is_transposed = bool(signature.attributes.get("transposed"))
        axis = int(is_transposed) if is_convolution or kept.op == "aten::linear" else -1
        inputs[place] = with_size(inputs[place], axis, _channels(second))
        outputs = (with_size(outputs[0], 1 if is_convolution else -1, _channels(second)), *outputs[1:])
    else:
        inputs[0] = first.signature.inputs[0]
        kernel = _merged_kernel(first, second) or ()
        inputs[place] = replace(inputs[place], shape=(_channels(second), inputs[0].shape[1], *kernel), stride=None)
    read, written = (sum(spec.nbytes for spec in specs) for specs in (inputs, outputs))
    cost = Cost(macs, round(signature.cost.flops * macs / max(signature.cost.macs, 1)), read, written)
    return replace(kept, signature=replace(signature, inputs=tuple(inputs), outputs=outputs, cost=cost))


def _merged_kernel(first: OpRecord, second: OpRecord) -> list[int] | None:
    """The size of the kernel that does what two convolutions do; None where no convolution does: zeros that the second
    pads lie behind the bias of the first, and around what its kernel has made of its own padding."""
    known, given = first.signature.attributes, second.signature.attributes
    names = ("stride", "padding", "dilation")
    if any(not isinstance(each.get(name), list) for each in (known, given) for name in names):
        return None
    found = []
    sizes = zip(first.signature.inputs[1].shape[2:], second.signature.inputs[1].shape[2:], strict=True)
    for at, (one, other) in enumerate(sizes):
        stride, padding, dilation = (known[name][at] for name in names)
        if given["padding"][at] and (one > 1 or padding or len(first.signature.inputs) > 2):
            return None
        if one > 1 and other > 1 and dilation > 1:
            return None
        found.append(one + (other - 1) * (stride * given["dilation"][at] if one > 1 else 1))
    return found


def _merge(evidence: Evidence, first: OpRecord, second: OpRecord) -> Patch | None:
    """For two layers of torch's that run once, both linear or both convolutions of one number of dimensions."""
    records = [evidence.modules[op.module] for op in (first, second)]
    is_once = all(record.calls == 1 for record in records)
    if not is_once or len({record.type for record in records}) > 1 or first.signature.attributes.get("transposed"):
        return None
    if records[0].type == "Linear":
        return Patch(MERGE, ("first", "second"), ((first.module, second.module),), "model.eval()")
    if records[0].type not in CONVOLUTIONS:
        return None
    known, given = first.signature.attributes, second.signature.attributes
    edges = zip(known["padding"], known["stride"], given["padding"], strict=True)
    padding = tuple(own + stride * behind for own, stride, behind in edges)
    return Patch(
        MERGE_CONVOLUTIONS, ("first", "second", "padding"), ((first.module, second.module, padding),), "model.eval()"
    )
