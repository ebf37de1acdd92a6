"""Work on a tensor that repeats a smaller one, which could be done on that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from torchgauge.advise.dataflow import same_axis
from torchgauge.advise.evidence import TENSOR_CORES, Evidence
from torchgauge.advise.processor import REFERENCE, pass_seconds
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.folding import LINEAR_OPS, is_pointwise_convolution
from torchgauge.advise.rules.narrow import with_size
from torchgauge.facts import Cost, OpRecord, TensorSpec, contiguous_stride

_PRODUCTS = {"aten::bmm", "aten::baddbmm"}
_REPEATING = {"aten::repeat", "aten::expand_copy", "aten::clone", "aten::repeat_interleave"}
_DIFFERENCES = {f"aten::{name}" for name in ("sub", "sub_", "add", "add_")}
# How many times a part must be repeated, and its least share of a layer's product, to be worth a separate call.
_LEAST_TIMES, _LEAST_SAVED = 4, 0.2
# Of what the split saves of a product and of the joining before it, the least: the sum of both parts is another pass
# over the result. The middle of 14 changes is all of it.
_LEAST_OF_PRODUCT, _LEAST_OF_JOINING = 0.7, 0.8
# Sums over one tensor at once, from which on a product reads it once in place of each time.
_LEAST_SUMS = 2
# Of a block that glibc takes fresh from the system each time (`op_time.py`).
_FRESH_BYTES = 32 << 20
# What einsum takes in addition to the product: it reads its equation and turns its operands around (16 × 16 matrices:
# 13 µs, and 2.4 for bmm, where a call takes 0.65 of the reference's).
_EINSUM_S = 16e-6
# Modules of torch's whose products are inside: GRUCell, LSTM, MultiheadAttention.
CLOSED = {f"{name}{kind}" for name in ("RNN", "GRU", "LSTM") for kind in ("", "Cell")} | {"MultiheadAttention"}
# Ops between a concatenation and the layer that reads it.
_MOST_BETWEEN = 4


@dataclass(frozen=True, slots=True)
class _Joined:
    """A product with a weight, and the concatenation along the channels that it reads, through the ops `between`."""

    cat: OpRecord
    layer: OpRecord
    between: tuple[OpRecord, ...] = ()

    @property
    def along(self) -> int:
        return int(self.cat.signature.attributes.get("dim") or 0) % len(self.cat.signature.outputs[0].shape)

    @property
    def channels(self) -> list[int]:
        """Of each tensor that is joined."""
        return [spec.shape[self.along] for spec in self.cat.signature.inputs]


@rule("repeated-input", family="order")
def repeated_input(evidence: Evidence) -> Iterator[Advice]:
    """A layer over positions, part of whose channels are one vector repeated at every position: the global feature of a
    point cloud, the state of a decoder next to the encoder's outputs."""
    in_loops = {layer.index for calls, _ in evidence.once(_same_parts) for layer in (call.layer for call in calls)}
    split: list[tuple[_Joined, dict[int, float], float]] = []  # with what is repeated how often, and the part saved
    for found in evidence.once(_joined_products):
        layer, parts = found.layer, found.channels
        # A window of several positions reads zeros at the border. `repeated-part` covers loops.
        if layer.index in in_loops or (layer.category == "convolution" and not is_pointwise_convolution(layer)):
            continue
        # A layer that reads a slice, as that of one tower, may meet each vector once.
        place, whole = _data_of(evidence, layer), found.cat.signature.outputs[0].numel
        part = 1.0 if place is None else layer.signature.inputs[place[0]].numel / whole
        times = {at: part * _times_repeated(evidence, found, at) for at in range(len(parts))}
        repeated = {at: count for at, count in times.items() if count >= _LEAST_TIMES}
        saved = sum(parts[at] * (1 - 1 / count) for at, count in repeated.items()) / sum(parts)
        if saved >= _LEAST_SAVED:
            split.append((found, repeated, saved))
    layers = {found.layer.index for found, _, _ in split}
    gone: set[int] = set()
    for found, repeated, saved in split:
        layer, cat = found.layer, found.cat
        # Where all its readers are split, nothing needs the joined tensor, nor the copies that it is made of. What is
        # between it and the layer has fewer channels then, and no other reader.
        is_gone = bool(found.between) or layers.issuperset(user.index for user in evidence.flow.users(cat))
        going = [cat] if is_gone else []
        copies = (evidence.flow.source(cat, at) for at in repeated) if going else ()
        going += [copy for copy in copies if copy is not None and _goes_away(evidence, copy, cat)]
        going = [op for op in (*going, *found.between) if op.index not in gone]
        gone |= {op.index for op in going}
        both, joining = evidence.share([*going, layer]), evidence.share(going).value
        product = 1 - joining / both.value if both.value else 1.0
        of_product = min(1.0, _saved_by_split(evidence, found, saved) / (_LEAST_OF_PRODUCT * saved))
        most = of_product * product * saved + (1 - product)
        if most <= 0:
            continue
        yield Advice(
            rule="repeated-input",
            where=Where(layer.module, (cat.index, layer.index)),
            evidence={
                "channels": sum(found.channels),
                "repeated_channels": sum(found.channels[at] for at in repeated),
                "times": min(repeated.values()),
            },
            recommendation="split this layer's weight: multiply the repeated vector once, then add it in place",
            change=None,
            # The result for the repeated part is added to the rest, which is another pass over the output.
            expected_gain=both.gain(
                max(0.0, (_LEAST_OF_PRODUCT * of_product * product + _LEAST_OF_JOINING * (1 - product)) * saved),
                most,
                "the product with channels that are equal at every position",
            ),
            risk="rounding differs in the last digits; checkpoints need no change",
            confidence="high",
        )


def _goes_away(evidence: Evidence, copy: OpRecord, cat: OpRecord) -> bool:
    """Whether nothing needs this repeated tensor without the concatenation: other readers broadcast the small one."""
    if copy.op not in _REPEATING or evidence.flow.is_result(copy):
        return False
    small = before_repeating(copy)
    others = [reader for reader in evidence.flow.users(copy) if reader is not cat]
    return all(small is not None and _broadcasts(evidence, reader, copy, small) for reader in others)


def _saved_by_split(evidence: Evidence, found: _Joined, saved: float) -> float:
    """Of the time of a layer, what it saves with fewer channels and another pass over its result: less than nothing
    where the result takes longer to write than to compute. All of it where op times were measured."""
    layer, before_s = found.layer, evidence.times.seconds.get(found.layer.index, 0.0)
    signature, cost = layer.signature, layer.signature.cost
    place, axis = _data_of(evidence, layer) or (0, 1)
    first = 1 if layer.op in ("aten::addmm", "aten::baddbmm") else 0
    is_rowwise = layer.category == "convolution" or layer.op == "aten::linear"
    sizes = {place: axis, (first + 1 if place == first else first): 1 if is_rowwise else -2 if place == first else -1}
    width = max(1, round((1 - saved) * sum(found.channels)))
    inputs = tuple(
        with_size(spec, sizes[at], width) if at in sizes else spec for at, spec in enumerate(signature.inputs)
    )
    read, written = sum(spec.nbytes for spec in inputs), signature.outputs[0].nbytes
    narrow = Cost(round((1 - saved) * cost.macs), round((1 - saved) * cost.flops), read, written)
    rest_s = evidence.seconds_of(replace(layer, signature=replace(signature, inputs=inputs, cost=narrow)))
    if evidence.is_cuda or rest_s is None or not before_s:
        return saved
    pace = (evidence.peaks.pace if evidence.peaks else None) or REFERENCE
    return 1 - (rest_s + pass_seconds(pace, 2 * written)) / before_s


@rule("repeated-part", family="loops")
def repeated_part(evidence: Evidence) -> Iterator[Advice]:
    """A product with a weight that a loop gives a joined tensor of which one part is the same in every round."""
    for calls, same in evidence.once(_same_parts):
        first, parts = calls[0], calls[0].channels
        # Of the rest, what is one vector at every position is multiplied at one of them.
        rest = {at: _times_repeated(evidence, first, at) for at in range(len(parts)) if at not in same}
        is_by_position = first.layer.category != "convolution" or is_pointwise_convolution(first.layer)
        saved = sum(parts[at] for at in same) * (1 - 1 / len(calls))
        saved += sum(parts[at] * (1 - 1 / times) for at, times in rest.items()) if is_by_position else 0
        saved /= sum(parts)
        joins = [call.cat for call in calls if len(evidence.flow.users(call.cat)) == 1]  # nothing else reads these
        yield Advice(
            rule="repeated-part",
            where=Where(first.layer.module, tuple(call.layer.index for call in calls)),
            evidence={"rounds": len(calls), "channels": sum(parts), "same_channels": sum(parts[at] for at in same)},
            recommendation="split this layer's weight and multiply the part that is the same in each round once",
            change=None,
            expected_gain=evidence.share([*joins, *(call.layer for call in calls)]).gain(
                0.4 * saved, saved, "the product with the part that stays the same"
            ),
            risk="rounding differs in the last digits; checkpoints need no change",
            confidence="high",
        )


def _same_parts(evidence: Evidence) -> list[tuple[list[_Joined], set[int]]]:
    """The calls of a product in the rounds of a loop, and the places of the joined tensors that are the same in every
    round."""
    groups: dict[tuple[object, ...], list[_Joined]] = {}
    for joined in evidence.once(_joined_products):
        if int(joined.layer.signature.attributes.get("groups") or 1) == 1:
            layer, cat = joined.layer, joined.cat
            key = (layer.module, layer.weights, layer.source, cat.source, evidence.dataflow.call_number(cat))
            groups.setdefault(key, []).append(joined)
    found: list[tuple[list[_Joined], set[int]]] = []
    repeated = {op.index for op in evidence.dataflow.repeated} if groups else set()
    for calls in groups.values():
        if len(calls) < _LEAST_TIMES:
            continue
        parts = calls[0].channels
        bases = [[evidence.dataflow.reads_whole(call.cat, at) for call in calls] for at in range(len(parts))]
        same = {at for at, read in enumerate(bases) if None not in read and len(set(read)) == 1}
        saved = sum(parts[at] for at in same) / sum(parts) * (1 - 1 / len(calls))
        # `repeated-work` covers a layer all of whose input is the same.
        if saved >= _LEAST_SAVED and len(same) < len(parts) and calls[-1].layer.index not in repeated:
            found.append((calls, same))
    return found


def _joined_products(evidence: Evidence) -> list[_Joined]:
    """Products with a weight over a concatenation along the channels that are summed up. The weights of torch's cells
    and attention cannot be split without writing these anew."""
    found: list[_Joined] = []
    for layer in evidence.flow.of_category("matmul", "convolution"):
        record = evidence.modules.get(layer.module)
        if not layer.weights or not layer.cost.macs or (record is not None and record.type in CLOSED):
            continue
        read = _data_of(evidence, layer)
        joined = None if read is None else _joined_channels(evidence, layer, *read)
        if joined is not None:
            found.append(joined)
    return found


def _data_of(evidence: Evidence, layer: OpRecord) -> tuple[int, int] | None:
    """Of a product with a weight, the place of the other operand, and the dimension of it that is summed up."""
    inputs = layer.signature.inputs
    if layer.category == "convolution":
        is_plain = not layer.signature.attributes.get("transposed") and _is_weight(evidence, layer, 1)
        return (0, 1) if is_plain else None
    first = 1 if layer.op in ("aten::addmm", "aten::baddbmm") else 0
    if layer.op not in LINEAR_OPS | _PRODUCTS or len(inputs) < first + 2:
        return None
    if _is_weight(evidence, layer, first + 1):
        return first, len(inputs[first].shape) - 1
    is_left = layer.op != "aten::linear" and _is_weight(evidence, layer, first)
    return (first + 1, len(inputs[first + 1].shape) - 2) if is_left else None


def _is_weight(evidence: Evidence, layer: OpRecord, place: int) -> bool:
    """A parameter, also one that is expanded, or made from parameters alone."""
    if place >= len(layer.producers) or not evidence.dataflow.is_constant_input(layer, place):
        return False
    sizes = {evidence.params[name].spec.numel for name in layer.weights if name in evidence.params}
    return layer.producers[place] is not None or layer.signature.inputs[place].distinct_numel in sizes


def _joined_channels(evidence: Evidence, layer: OpRecord, place: int, axis: int) -> _Joined | None:
    """The concatenation along its channels that a layer reads: directly, or in another order of dimensions, copied, and
    through activations, which treat each channel alone. Each of these is read by the next one only, the concatenation
    by layers."""
    read, reader, between = layer.signature.inputs[place], layer, list[OpRecord]()
    at: int | None = axis
    source = evidence.flow.source(layer, place)
    for _ in range(_MOST_BETWEEN):
        if source is None or at is None:
            return None
        made = source.signature.outputs[0]
        at = same_axis(at, read, made)
        if source.op == "aten::cat":
            is_along = at == int(source.signature.attributes.get("dim") or 0) % len(made.shape)
            is_even = all(len(spec.shape) == len(made.shape) for spec in source.signature.inputs)
            users = evidence.flow.users(source)
            are_layers = not evidence.flow.is_result(source) and all(user.category in TENSOR_CORES for user in users)
            is_kept = evidence.flow.is_kept_for(source, reader) or are_layers
            return _Joined(source, layer, tuple(between)) if is_along and is_even and is_kept else None
        is_by_channel = source.category == "activation" and len(source.producers) == 1
        if not evidence.flow.is_kept_for(source, reader) or (source.op != "aten::clone" and not is_by_channel):
            return None
        between.append(source)
        reader, read, source = source, source.signature.inputs[0], evidence.flow.source(source)
        at = at if read.shape == made.shape else None
    return None


def _times_repeated(evidence: Evidence, joined: _Joined, at: int) -> float:
    """How often each element of an input is there, where it is repeated along other dimensions than the channels."""
    spec, source, along = joined.cat.signature.inputs[at], evidence.flow.source(joined.cat, at), joined.along
    if spec.stride is not None and spec.stride[along] and spec.shape[along] > 1:
        times = spec.numel / max(_unrepeated(spec), 1)
        if times > 1:
            return times
    if source is None or source.op not in _REPEATING:
        return 1.0
    read, made = source.signature.inputs[0], source.signature.outputs[0]
    # Positions may be one dimension with the samples behind a view.
    axis = along if made.shape == spec.shape else same_axis(along, spec, made)
    if axis is None or made.numel != spec.numel:
        return 1.0
    from_last = len(made.shape) - axis
    has_channels = len(read.shape) >= from_last and read.shape[-from_last] == spec.shape[along]
    is_spread = has_channels and (read.stride is None or bool(read.stride[-from_last]))
    return spec.numel / max(_unrepeated(read), 1) if is_spread else 1.0


@rule("broadcast-matmul", family="copies")
def broadcast_matmul(evidence: Evidence) -> Iterator[Advice]:
    for copy, product, times in _copied_operands(evidence):
        made = copy.signature.outputs[0]
        seconds = evidence.times.seconds
        copied, multiplied = seconds.get(copy.index, 0.0), seconds.get(product.index, 0.0)
        saved = copied - _EINSUM_S * evidence.times.call_pace
        if saved <= 0:
            continue
        whole = copied + multiplied
        yield Advice(
            rule="broadcast-matmul",
            where=Where(product.module, (copy.index, product.index)),
            evidence={"copied_bytes": made.nbytes, "times": times},
            recommendation="use torch.einsum here: this matmul copies one operand for every matrix of the other",
            change=None,
            # Larger products in place of many small ones may save as much again.
            expected_gain=evidence.share([copy, product]).gain(
                0.8 * saved / whole, (saved + 0.5 * multiplied) / whole, "the copy, and products of small matrices"
            ),
            risk="rounding differs in the last digits",
            confidence="high",
        )


def _copied_operands(evidence: Evidence) -> Iterator[tuple[OpRecord, OpRecord, float]]:
    """Copies that a matmul makes of one operand for each matrix of the other, to have batches of equal size; with the
    product, and how many times it is copied."""
    for copy in evidence.flow.named("aten::clone"):
        product = evidence.flow.only_reader(copy)
        if product is None or product.op not in _PRODUCTS:
            continue
        if (product.source, product.module) != (copy.source, copy.module) or copy.source is None:
            continue  # somebody's own copy, as of keys for the heads that share them
        times = copy.signature.outputs[0].numel / max(_unrepeated(copy.signature.inputs[0]), 1)
        if times >= _LEAST_TIMES:
            yield copy, product, times


def copies_by_sample(evidence: Evidence) -> set[int]:
    """Copies that are as many as a batch has samples, or as a matmul needs: of a weight, another batch needs others, so
    they cannot be made before."""
    own = {copy.index for copy in evidence.flow.named(*_REPEATING) if _is_by_sample(evidence, copy)}
    return own | {copy.index for copy, _, _ in _copied_operands(evidence)}


def _is_by_sample(evidence: Evidence, copy: OpRecord) -> bool:
    small, samples = before_repeating(copy) or (), evidence.capture.samples
    return bool(small) and samples > 1 and small[0] == 1 and copy.signature.outputs[0].shape[0] == samples


def before_repeating(copy: OpRecord) -> tuple[int, ...] | None:
    """The shape with ones where it is repeated; None where whole rows are put behind each other, as by repeat(2, 1) of
    a matrix of several rows."""
    read, made = copy.signature.inputs[0], copy.signature.outputs[0]
    if len(read.shape) > len(made.shape) or (copy.op == "aten::clone" and read.shape != made.shape):
        return None
    shape = (1,) * (len(made.shape) - len(read.shape)) + read.shape
    steps = (0,) * (len(made.shape) - len(read.shape)) + (read.stride or contiguous_stride(read.shape))
    small = tuple(1 if step == 0 else size for size, step in zip(shape, steps, strict=True))
    return small if all(size in (1, whole) for size, whole in zip(small, made.shape, strict=True)) else None


def _broadcasts(evidence: Evidence, reader: OpRecord, copy: OpRecord, small: tuple[int, ...]) -> bool:
    """Whether a pointwise op makes the same tensor from `small` and its other operands, these before they are repeated
    too; a batch of matrix products, whether one matrix is repeated for all of them."""
    made, result = copy.signature.outputs[0], reader.signature.outputs[0]
    inputs, places = reader.signature.inputs, [at for at, source in enumerate(reader.producers) if source == copy.index]
    if len(places) != 1 or inputs[places[0]] != made or (reader.op.endswith("_") and places[0] == 0):
        return False
    if reader.op in _PRODUCTS:
        return len(made.shape) == len(small) and small[0] == 1 and small[1:] == made.shape[1:]
    if reader.category != "elementwise" or len(inputs) < 2:
        return False
    shapes = [small]
    for at, spec in enumerate(inputs):
        source = evidence.flow.source(reader, at)
        is_repeated = source is not None and source.op in _REPEATING and source.signature.outputs[0] == spec
        other = before_repeating(source) if source is not None and is_repeated else None
        if at != places[0]:
            shapes.append(other or spec.shape)
    rank = len(result.shape)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(map(max, zip(*padded, strict=True))) == result.shape


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
        # Rows times rows, one by one, are not a matrix product: one factor must be the same along some dimension. Whole
        # numbers have no fast product.
        held = [_unrepeated(spec) for spec in factors]
        times, is_broadcast = made.numel / max(held), _LEAST_TIMES * min(held) <= made.numel
        if not summed or not is_broadcast or not made.is_floating or total.signature.inputs[0].shape != made.shape:
            continue
        if not all(_has_whole(spec, made, dim) for spec in factors for dim in summed):
            continue
        # `weighted-differences` says more about the same passes.
        if _is_batch(factors, made, summed) or op.index in evidence.once(_weighted_differences):
            continue
        # Two passes over memory that is there already hardly take longer than a product per sample. With a dimension
        # that all factors share behind another one, the product needs them in another order: 15 % slower for
        # 8 × 512 × 32 × 64, summed over 512, and 11 to 23 % for 8 × 32 × 2125 × 16 and 8 × 1 × 2125 × 16, over 16.
        is_weighted_sum = times < _LEAST_SUMS
        shared = {dim for dim in range(rank) if all(_has_whole(spec, made, dim) for spec in factors)} - summed
        first = min(dim for dim in range(rank) if dim not in shared and made.shape[dim] > 1)
        if is_weighted_sum and (made.nbytes < _FRESH_BYTES or any(dim > first for dim in shared)):
            continue
        # einsum turns the larger factor of a weighted sum around: 9 of 13 took longer than the two passes, 6 of them
        # twice as long and more. A product of a vector and a matrix per sample took 41 to 98 % less.
        how = "matmul" if is_weighted_sum else "torch.einsum or matmul"
        how += "" if len({spec.dtype for spec in factors}) == 1 else " with both factors in one type"
        yield Advice(
            rule="product-then-sum",
            where=Where(op.module, (op.index, total.index)),
            evidence={"shape": list(made.shape), "written_bytes": made.nbytes},
            recommendation=f"use {how}: this writes out all products before it adds them",
            change=None,
            expected_gain=evidence.share([op, total]).gain(
                0.4 if is_weighted_sum else 0.5, 0.95, "the passes over the products"
            ),
            risk="rounding differs in the last digits; on a GPU the product may use TF32",
            confidence="high",
        )


def _weighted_differences(evidence: Evidence) -> dict[int, tuple[OpRecord, OpRecord, OpRecord]]:
    """By the op that multiplies with the weights: the difference, this op and the sum."""
    found: dict[int, tuple[OpRecord, OpRecord, OpRecord]] = {}
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
        is_repeated = made.numel >= _LEAST_TIMES * _unrepeated(weight)
        if not summed or not is_repeated or not all(_has_whole(weight, made, dim) for dim in summed):
            continue
        if _is_batch((weight,), made, set(summed)):
            continue
        difference = evidence.flow.source(scaled, at)
        # A centre that varies along a dimension which is summed up needs a sum of products of its own.
        terms = difference.signature.inputs if difference is not None else ()
        centre = min(terms, key=_unrepeated, default=None)
        if difference is None or centre is None or any(_has_whole(centre, made, dim) for dim in summed):
            continue
        found[scaled.index] = (difference, scaled, total)
    return found


def _is_difference(evidence: Evidence, scaled: OpRecord, at: int) -> bool:
    """Whether a factor is a difference or sum that this product alone reads, as large as the product, of which a term
    is broadcast."""
    source, made = evidence.flow.source(scaled, at), scaled.signature.outputs[0]
    if source is None or source.op not in _DIFFERENCES or not evidence.flow.is_kept_for(source, scaled):
        return False
    terms, is_plain = source.signature.inputs, source.signature.attributes.get("alpha", 1) == 1
    is_whole = source.signature.outputs[0].shape == made.shape == scaled.signature.inputs[at].shape
    smallest = min(map(_unrepeated, terms), default=made.numel)
    return len(terms) == 2 and is_plain and is_whole and 1 < smallest <= made.numel / _LEAST_TIMES


def _is_batch(factors: Sequence[TensorSpec], made: TensorSpec, summed: set[int]) -> bool:
    """Whether the innermost dimension stays and is in every factor: a product for each of its elements, for which
    einsum copies the factors into another order. 28 % slower for 16 × 128 × 200 × 82, summed over 200."""
    last = len(made.shape) - 1
    return last not in summed and all(_has_whole(spec, made, last) for spec in factors)


def _unrepeated(spec: TensorSpec) -> int:
    """Elements without those along dimensions that repeat them. Of overlapping windows, each position has others."""
    steps = spec.stride or contiguous_stride(spec.shape)
    return prod(size for size, step in zip(spec.shape, steps, strict=True) if step or size == 1)


def _has_whole(spec: TensorSpec, made: TensorSpec, dim: int) -> bool:
    """Whether a factor has this dimension of the product, and is not repeated along it."""
    from_last = len(made.shape) - dim
    if len(spec.shape) < from_last or spec.shape[-from_last] != made.shape[dim] or made.shape[dim] == 1:
        return False
    return spec.stride is None or bool(spec.stride[-from_last])
