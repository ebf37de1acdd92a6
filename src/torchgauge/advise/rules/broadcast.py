"""Work on a tensor that repeats a smaller one, which could be done on that."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.dataflow import same_axis
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.folding import LINEAR_OPS, is_pointwise_convolution
from torchgauge.facts import OpRecord, TensorSpec

_PRODUCTS = {"aten::bmm", "aten::baddbmm"}
_REPEATING = {"aten::repeat", "aten::expand_copy", "aten::clone", "aten::repeat_interleave"}
_ONES = {"aten::ones", "aten::new_ones", "aten::ones_like", "aten::full", "aten::new_full"}
_DIFFERENCES = {f"aten::{name}" for name in ("sub", "sub_", "rsub", "add", "add_")}
# So many times a part must be repeated, and so much of a layer's product must be with it, to be worth another call.
_LEAST_TIMES, _LEAST_SAVED = 4, 0.2
# Ops between a concatenation and the layer that reads it.
_MOST_BETWEEN = 4


@rule("repeated-input", family="order")
def repeated_input(evidence: Evidence) -> Iterator[Advice]:
    """A layer over positions, part of whose channels are one vector repeated at every position: the global feature of a
    point cloud, the state of a decoder next to the encoder's outputs."""
    for layer in evidence.flow.steps:
        sources = evidence.flow.sources(layer) if layer.weights else ()
        joined = next((source for source in sources if source.op == "aten::cat"), None)
        if joined is None or not evidence.flow.is_kept_for(joined, layer):
            continue
        rank = len(joined.signature.outputs[0].shape)
        along = int(joined.signature.attributes.get("dim") or 0) % rank
        is_linear = layer.op in LINEAR_OPS and along == rank - 1
        if not is_linear and not (is_pointwise_convolution(layer) and along == 1):
            continue
        repeated = [
            (at, times)
            for at in range(len(joined.signature.inputs))
            if (times := _times_repeated(evidence, joined, at, along)) >= _LEAST_TIMES
        ]
        parts = [spec.shape[along] for spec in joined.signature.inputs]
        saved = sum(parts[at] * (1 - 1 / times) for at, times in repeated) / sum(parts)
        if saved < _LEAST_SAVED:
            continue
        yield Advice(
            rule="repeated-input",
            where=Where(layer.module, (joined.index, layer.index)),
            evidence={
                "channels": sum(parts),
                "repeated_channels": sum(parts[at] for at, _ in repeated),
                "times": min(times for _, times in repeated),
            },
            recommendation="split this layer's weight: multiply the repeated vector once, before it is repeated",
            change=None,
            # The result for the repeated part is added to the rest, which is another pass over the output.
            expected_gain=evidence.share([joined, layer]).gain(
                0.4 * saved, saved, "the product with channels that are equal at every position"
            ),
            risk="rounding differs in the last digits; checkpoints need no change",
            confidence="high",
        )


@rule("repeated-part", family="loops")
def repeated_part(evidence: Evidence) -> Iterator[Advice]:
    """A linear layer or convolution that a loop gives a joined tensor of which one part is the same in every round."""
    groups: dict[tuple[object, ...], list[tuple[OpRecord, OpRecord]]] = {}
    for layer in evidence.flow.steps:
        record = evidence.modules.get(layer.module)
        kind = "" if record is None or not layer.weights or not layer.cost.macs else record.type
        if (layer.op in LINEAR_OPS and kind == "Linear") or (layer.category == "convolution" and "Conv" in kind):
            joined = _joined_channels(evidence, layer)
            if joined is not None and int(layer.signature.attributes.get("groups") or 1) == 1:
                key = (layer.module, layer.weights, joined.source, evidence.dataflow.call_number(joined))
                groups.setdefault(key, []).append((joined, layer))
    repeated = {op.index for op in evidence.dataflow.repeated} if groups else set()
    for calls in groups.values():
        first = calls[0][0]
        if len(calls) < _LEAST_TIMES:
            continue
        along = int(first.signature.attributes.get("dim") or 0)
        parts = [spec.shape[along] for spec in first.signature.inputs]
        bases = [[evidence.dataflow.reads_whole(joined, at) for joined, _ in calls] for at in range(len(parts))]
        same = [part for part, found in zip(parts, bases, strict=True) if None not in found and len(set(found)) == 1]
        saved = sum(same) / sum(parts) * (1 - 1 / len(calls))
        # `repeated-work` covers a layer all of whose input is the same.
        if not _LEAST_SAVED <= saved < 1 or len(same) == len(parts) or calls[-1][1].index in repeated:
            continue
        yield Advice(
            rule="repeated-part",
            where=Where(calls[0][1].module, tuple(layer.index for _, layer in calls)),
            evidence={"rounds": len(calls), "channels": sum(parts), "same_channels": sum(same)},
            recommendation="split this layer's weight: part of its input is the same in each round: multiply it once",
            change=None,
            expected_gain=evidence.share([op for call in calls for op in call]).gain(
                0.4 * saved, saved, "the product with the part that stays the same"
            ),
            risk="rounding differs in the last digits; checkpoints need no change",
            confidence="high",
        )


def _joined_channels(evidence: Evidence, layer: OpRecord) -> OpRecord | None:
    """The concatenation along its channels that a layer reads: directly, or in another order of dimensions, copied, and
    through activations, which treat each channel alone. Each of these is read by the next one only."""
    place = 1 if layer.op == "aten::addmm" else 0
    read, reader = layer.signature.inputs[place], layer
    at: int | None = 1 if layer.category == "convolution" else len(read.shape) - 1
    source = evidence.flow.source(layer, place)
    for _ in range(_MOST_BETWEEN):
        if source is None or at is None or not evidence.flow.is_kept_for(source, reader):
            return None
        made = source.signature.outputs[0]
        at = same_axis(at, read, made)
        if source.op == "aten::cat":
            is_along = at == int(source.signature.attributes.get("dim") or 0) % len(made.shape)
            return source if is_along else None
        if source.op != "aten::clone" and not (source.category == "activation" and len(source.producers) == 1):
            return None
        reader, read, source = source, source.signature.inputs[0], evidence.flow.source(source)
        at = at if read.shape == made.shape else None
    return None


def _times_repeated(evidence: Evidence, joined: OpRecord, at: int, along: int) -> float:
    """How often each element of an input is there, where it is repeated along other dimensions than the channels."""
    spec, source = joined.signature.inputs[at], evidence.flow.source(joined, at)
    if spec.stride is not None and spec.stride[along] and spec.shape[along] > 1:
        times = spec.numel / max(spec.distinct_numel, 1)
        if times > 1:
            return times
    if source is None or source.op not in _REPEATING or source.signature.outputs[0].shape != spec.shape:
        return 1.0
    read = source.signature.inputs[0]
    from_last = len(spec.shape) - along
    has_channels = len(read.shape) >= from_last and read.shape[-from_last] == spec.shape[along]
    is_spread = has_channels and (read.stride is None or bool(read.stride[-from_last]))
    return spec.numel / max(read.distinct_numel, 1) if is_spread else 1.0


@rule("broadcast-matmul", family="copies")
def broadcast_matmul(evidence: Evidence) -> Iterator[Advice]:
    """A matmul that copies one operand for each matrix of the other, to make batches of equal size."""
    for copy in evidence.flow.named("aten::clone"):
        product = evidence.flow.only_reader(copy)
        if product is None or product.op not in _PRODUCTS:
            continue
        if (product.source, product.module) != (copy.source, copy.module) or copy.source is None:
            continue  # somebody's own copy, as of keys for the heads that share them
        read, made = copy.signature.inputs[0], copy.signature.outputs[0]
        times = made.numel / max(read.distinct_numel, 1)
        if times < _LEAST_TIMES:
            continue
        copied, multiplied = evidence.share([copy]).value, evidence.share([product]).value
        whole = max(copied + multiplied, 1e-12)
        yield Advice(
            rule="broadcast-matmul",
            where=Where(product.module, (copy.index, product.index)),
            evidence={"copied_bytes": made.nbytes, "times": times},
            recommendation="use torch.einsum here: this matmul copies one operand for every matrix of the other",
            change=None,
            # Larger products in place of many small ones may save as much again.
            expected_gain=evidence.share([copy, product]).gain(
                0.8 * copied / whole, (copied + 0.5 * multiplied) / whole, "the copy, and products of small matrices"
            ),
            risk="rounding differs in the last digits",
            confidence="high",
        )


@rule("product-then-sum", family="fusion")
def product_then_sum(evidence: Evidence) -> Iterator[Advice]:
    """Pairwise products that are written out and then added up: a matrix product."""
    for op in evidence.flow.named("aten::mul"):
        total = evidence.flow.only_reader(op)
        if total is None or total.op != "aten::sum" or len(op.signature.inputs) != 2:
            continue
        made, factors = op.signature.outputs[0], op.signature.inputs
        dims = total.signature.attributes.get("dim")
        rank = len(made.shape)
        summed = {int(dim) % rank for dim in dims} if isinstance(dims, list | tuple) and dims else set[int]()
        is_pairwise = made.numel >= _LEAST_TIMES * max(spec.numel for spec in factors)
        if not summed or not is_pairwise or total.signature.inputs[0].shape != made.shape:
            continue
        if not all(_has_whole(spec, made, dim) for spec in factors for dim in summed):
            continue
        yield Advice(
            rule="product-then-sum",
            where=Where(op.module, (op.index, total.index)),
            evidence={"shape": list(made.shape), "written_bytes": made.nbytes},
            recommendation="use torch.einsum or matmul: this writes out all products before it adds them",
            change=None,
            expected_gain=evidence.share([op, total]).gain(0.5, 0.95, "the passes over the products of all pairs"),
            risk="rounding differs in the last digits; on a GPU the product may use TF32",
            confidence="high",
        )


@rule("weighted-differences", family="fusion")
def weighted_differences(evidence: Evidence) -> Iterator[Advice]:
    """`((x - centre) * weight).sum(axis)`, where centre and weight are broadcast: the residuals of a codebook. The sum
    of the products with x is a matrix product, that with the centre needs the sum of the weights alone."""
    for scaled in evidence.flow.named("aten::mul", "aten::mul_"):
        total = evidence.flow.only_reader(scaled)
        if total is None or total.op != "aten::sum" or len(scaled.producers) != 2:
            continue
        at = next((at for at in (0, 1) if _is_difference(evidence, scaled, at)), None)
        made, dims = scaled.signature.outputs[0], total.signature.attributes.get("dim")
        if at is None or not isinstance(dims, list | tuple) or total.signature.inputs[0].shape != made.shape:
            continue
        weight, rank = scaled.signature.inputs[1 - at], len(made.shape)
        summed = [int(dim) % rank for dim in dims]
        is_repeated = made.numel >= _LEAST_TIMES * weight.distinct_numel
        if not summed or not is_repeated or not all(_has_whole(weight, made, dim) for dim in summed):
            continue
        difference = evidence.flow.source(scaled, at)
        ops = [op for op in (difference, scaled, total) if op is not None]
        yield Advice(
            rule="weighted-differences",
            where=Where(scaled.module, tuple(op.index for op in ops)),
            evidence={"shape": list(made.shape), "written_bytes": 2 * made.nbytes},
            recommendation="use matmul(weight, x) - weight.sum() * centre: this writes out all differences",
            change=None,
            expected_gain=evidence.share(ops).gain(0.5, 0.95, "the passes over the differences and products"),
            risk="rounding differs: digits are lost where the differences are much smaller than the tensors",
            confidence="high",
        )


def _is_difference(evidence: Evidence, scaled: OpRecord, at: int) -> bool:
    """Whether a factor is a difference or sum that this product alone reads, as large as the product, of which a term
    is broadcast."""
    source, made = evidence.flow.source(scaled, at), scaled.signature.outputs[0]
    if source is None or source.op not in _DIFFERENCES or not evidence.flow.is_kept_for(source, scaled):
        return False
    terms = source.signature.inputs
    is_whole = source.signature.outputs[0].shape == made.shape == scaled.signature.inputs[at].shape
    smallest = min((spec.distinct_numel for spec in terms), default=made.numel)
    return len(terms) == 2 and is_whole and 1 < smallest <= made.numel / _LEAST_TIMES


def _has_whole(spec: TensorSpec, made: TensorSpec, dim: int) -> bool:
    """Whether a factor has this dimension of the product, and is not repeated along it."""
    from_last = len(made.shape) - dim
    if len(spec.shape) < from_last or spec.shape[-from_last] != made.shape[dim] or made.shape[dim] == 1:
        return False
    return spec.stride is None or bool(spec.stride[-from_last])


@rule("equal-filters", family="unused")
def equal_filters(evidence: Evidence) -> Iterator[Advice]:
    """A frozen convolution that computes the same channel many times, as one that counts the valid pixels of a mask."""
    for op in evidence.flow.of_category("convolution"):
        kernel = op.signature.inputs[1].shape
        is_plain = (
            not op.signature.attributes.get("transposed") and int(op.signature.attributes.get("groups") or 1) == 1
        )
        if kernel[0] < _LEAST_TIMES or not is_plain or len(op.signature.inputs) > 3:
            continue
        names = [name for name in op.weights if name in evidence.params and evidence.params[name].spec.shape == kernel]
        source = evidence.flow.source(op, 1)
        is_ones = source is not None and source.op in _ONES and source.index in evidence.dataflow.constants
        is_frozen = bool(names) and not evidence.params[names[0]].trainable and len(op.weights) == 1
        if not is_ones and not (is_frozen and evidence.model is not None and evidence.model.has_equal_rows(names[0])):
            continue
        saved = 1 - 1 / kernel[0]
        yield Advice(
            rule="equal-filters",
            where=Where(op.module, (op.index,), names[0] if names else None),
            evidence={"filters": kernel[0]},
            recommendation="keep one filter and expand its result: all filters of this convolution are equal",
            change=None,
            expected_gain=evidence.share([op]).gain(0.5 * saved, saved, "the filters but one"),
            risk="none; a checkpoint keeps one filter where it had all",
            confidence="high",
        )
