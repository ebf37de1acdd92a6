"""The ops of a run as `torch.compile` runs them: with the kernels that Inductor fused if it is available, otherwise by
a rule of thumb: a chain of pointwise ops, with the norms and reductions that it ends in, is one kernel that reads the
chain's inputs and writes its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torchgauge.facts import COUNTED, EXTERN, ITEM_BITS, Compiled, Cost, OpRecord, Signature, TensorSpec
from torchgauge.predict.coordinates import is_silent

FUSED = "inductor::fused"
_POINTWISE = frozenset(("elementwise", "activation", "copy"))
_ENDS = frozenset(("normalization", "softmax", "reduction"))
_MAX_GROUPED_OPS = 32  # ops of a group
# What Inductor leaves to libraries; all else it generates code for.
_LIBRARY = frozenset(("matmul", "convolution", "attention", "recurrent", "sort", "fft", "communication"))


def fused_by(compiled: Compiled, ops: Sequence[OpRecord]) -> list[OpRecord]:
    """The calls of libraries among the ops, with the generated kernels between them as Inductor launches them. The
    optimizer, which is not compiled, stays unchanged."""
    names = {op for kernel in compiled.kernels if kernel.kind == EXTERN for op in kernel.ops}
    compiling = [op for op in ops if op.phase != "optimizer" and not is_silent(op)]
    library = [op for op in compiling if op.category in _LIBRARY or op.signature.op in names]
    dtype = next((op.signature.dtype for op in library if op.signature.dtype), None) or "float32"
    waiting, found = iter(library), list[OpRecord]()
    for number, kernel in enumerate(compiled.kernels):
        if kernel.kind == EXTERN:
            found += [op for op in (next(waiting, None),) if op is not None]
            continue
        # The output of the kernel before comes from the cache, the rest from memory.
        before = found[-1] if found else None
        near = min(before.signature.cost.bytes_written, kernel.bytes_read) if before else 0
        inputs = (_flat(near, dtype), _flat(kernel.bytes_read - near, dtype))
        cost = Cost(0, 0, kernel.bytes_read, kernel.bytes_written)
        outputs = (_flat(kernel.bytes_written, dtype),)
        signature = Signature(FUSED, "", "elementwise", COUNTED, (), inputs, outputs, {}, cost, 0)
        module = max(kernel.modules, key=lambda path: kernel.modules[path], default="")
        phase = compiled.graphs[kernel.graph].phase
        producers = (before.index if before else None, None)
        index = len(ops) + number
        found.append(OpRecord(index, signature, module, 0, phase=phase, producers=producers))
    return [*found, *waiting, *(op for op in ops if op.phase == "optimizer" and not is_silent(op))]


def _flat(nbytes: int, dtype: str) -> TensorSpec:
    return TensorSpec((max(nbytes * 8 // ITEM_BITS[dtype], 1),), dtype)


def fused(ops: Sequence[OpRecord]) -> list[OpRecord]:
    """A group replaces its last op; views between its members are dropped."""
    group_of: dict[int, int] = {}
    groups: dict[int, list[OpRecord]] = {}
    by_index = {op.index: op for op in ops}
    behind: dict[int, int | None] = {}  # what a view shows, by its index

    def origin(producer: int | None) -> int | None:
        while producer in behind:
            producer = behind[producer]
        return producer

    for op in ops:
        if is_silent(op):
            behind[op.index] = op.producers[0] if op.producers else None
            continue
        if op.category not in _POINTWISE | _ENDS:
            continue
        own = max((spec.numel for spec in (*op.signature.inputs, *op.signature.outputs)), default=0)
        for producer in map(origin, op.producers):
            number = group_of.get(-1 if producer is None else producer)
            if number is None or len(groups[number]) >= _MAX_GROUPED_OPS or producer is None:
                continue
            before = by_index[producer]
            if before.phase != op.phase or (before.category in _ENDS and before.category == "reduction"):
                continue
            made = max((spec.numel for spec in before.signature.outputs), default=0)
            if made * 2 >= own:
                group_of[op.index] = number
                groups[number].append(op)
                break
        else:
            group_of[op.index] = op.index
            groups[op.index] = [op]
    readers: dict[int, set[int]] = {}
    for op in ops:
        if not is_silent(op):
            for producer in map(origin, op.producers):
                if producer is not None:
                    readers.setdefault(producer, set()).add(group_of.get(op.index, -op.index - 1))
    last = {members[-1].index: members for members in groups.values()}
    found = []
    for op in ops:
        if op.index in last:
            found.append(_merged(last[op.index], readers, group_of, origin))
        elif op.index not in group_of and not is_silent(op):
            found.append(op)
    return found


def _merged(
    members: list[OpRecord],
    readers: dict[int, set[int]],
    group_of: dict[int, int],
    origin: Callable[[int | None], int | None],
) -> OpRecord:
    if len(members) == 1:
        return members[0]
    own = {op.index for op in members}
    number = group_of[members[0].index]
    inputs: dict[tuple[int | None, tuple[int, ...], str], tuple[TensorSpec, int | None]] = {}
    outputs: list[TensorSpec] = []
    flops = 0
    for op in members:
        flops += op.cost.flops
        for spec, producer in zip(op.signature.inputs, op.producers, strict=False):
            source = origin(producer)
            if source not in own:
                inputs[source, spec.shape, spec.dtype] = (spec, producer)
        outside = readers.get(op.index, set()) - {number}
        if outside or op.index not in readers:
            outputs += op.signature.outputs[:1]
    specs = tuple(spec for spec, _ in inputs.values())
    cost = Cost(0, flops, sum(s.distinct_bytes for s in specs), sum(s.distinct_bytes for s in outputs))
    last = members[-1]
    signature = Signature(FUSED, "", "elementwise", COUNTED, (), specs, tuple(outputs), {}, cost, 0)
    return replace(last, signature=signature, producers=tuple(producer for _, producer in inputs.values()))
