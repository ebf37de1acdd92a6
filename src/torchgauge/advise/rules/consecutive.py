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
from torchgauge.advise.rules.folding import LINEAR_OPS, are_alone, are_chosen_apart, is_pointwise_convolution
from torchgauge.advise.rules.narrow import with_size
from torchgauge.facts import Cost, OpRecord

CONVOLUTIONS = {"Conv1d", "Conv2d", "Conv3d"}

# Of the multiply-adds of the two, what must go away. Less does not pay for another weight in the checkpoint.
_LEAST_SAVED = 0.25
# Positions from which on the multiply-adds take longer than to read the weight once.
_MANY_ROWS = 64
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
