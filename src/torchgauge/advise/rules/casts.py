"""Changes of type that cost more than they bring."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.matrices import whole_gain
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord, TensorSpec

_CAST = "aten::_to_copy"
# Methods that cast.
CASTS = ("to", "float", "half", "bfloat16", "double", "type", "type_as")
_MOST_POINTWISE = 2
# A copy up to this size is still in the shared cache of a current server when the next op reads it, and is read from
# there so much faster than from memory (`op_time`).
_CACHED, _CACHE_SPEED = 32 << 20, 1.7


@rule("cast-round-trip", family="types")
def cast_round_trip(evidence: Evidence) -> Iterator[Advice]:
    """A tensor cast and cast back, with nothing done in between."""
    for op in evidence.flow.named(_CAST):
        before = evidence.flow.source(op)
        if before is None or not _changes_type(op) or not _changes_type(before):
            continue
        if before.signature.inputs[0].dtype != op.signature.outputs[0].dtype:
            continue
        # Others may want the tensor in the type between.
        spared = [before, op] if evidence.flow.is_kept_for(before, op) else [op]
        there, back = before.signature.outputs[0], op.signature.outputs[0]
        # To whole numbers or 8 bits and back is a rounding, to booleans and back a test for zero.
        is_rounding = back.is_floating and (not there.is_floating or there.itemsize < 2)
        if there.dtype == "bool" or is_rounding:
            continue
        yield Advice(
            rule="cast-round-trip",
            where=Where(op.module, (before.index, op.index)),
            evidence={"from": back.dtype, "to": there.dtype, "bytes_moved": sum(map(moved, spared))},
            recommendation="leave out the cast there and back: nothing is computed in between",
            change=evidence.without_calls([before, op], CASTS) if len(spared) == 2 else None,
            expected_gain=evidence.share(spared).gain(1.0, 1.0, "the copies go away"),
            risk="values are no longer rounded to the narrower type" if there.itemsize < back.itemsize else "none",
            confidence="high",
        )


@rule("cast-round-pointwise", family="types")
def cast_round_pointwise(evidence: Evidence) -> Iterator[Advice]:
    """An activation or a sum in float32 inside a model of 16 bits: its kernel computes in float32 anyway."""
    for op in evidence.flow.named(_CAST):
        found = _widened_before(evidence, op)
        if found is None:
            continue
        casts, between = found
        yield Advice(
            rule="cast-round-pointwise",
            where=Where(op.module, tuple(each.index for each in (*casts, *between, op))),
            evidence={"from": op.signature.outputs[0].dtype, "ops": [each.op for each in between]},
            recommendation="leave out the casts around this op: its kernel computes in float32 anyway",
            change=evidence.without_calls([*casts, op], CASTS),
            expected_gain=evidence.share([*casts, op]).gain(0.8, 1.0, "the casts go away"),
            risk="results between these ops are rounded to the narrow type",
            confidence="medium",
        )


def _widened_before(evidence: Evidence, op: OpRecord) -> tuple[list[OpRecord], list[OpRecord]] | None:
    """The casts to a wider type, and the few pointwise ops between them and the cast back; None where there is more:
    other operands in the wide type, a sum over elements."""
    if not _changes_type(op) or op.signature.outputs[0].itemsize >= op.signature.inputs[0].itemsize:
        return None
    if not op.signature.outputs[0].is_floating:  # a rounding to the levels of an image or of a quantised tensor
        return None
    narrow, between = op.signature.outputs[0].dtype, list[OpRecord]()
    near = evidence.flow.source(op)
    # Between two ops a square or an exponential may be larger than float16 can hold.
    most = 1 if narrow == "float16" else _MOST_POINTWISE
    while near is not None and near.category in ("elementwise", "activation") and len(between) < most:
        between.insert(0, near)
        sources = [evidence.flow.source(near, at) for at in range(len(near.producers))]
        casts = [source for source in sources if source is not None and _changes_type(source)]
        if casts and len(casts) == len(sources) and all(c.signature.inputs[0].dtype == narrow for c in casts):
            return casts, between
        near = sources[0] if len(sources) == 1 else None
    return None


def _changes_type(op: OpRecord) -> bool:
    return op.op == _CAST and op.signature.inputs[0].dtype != op.signature.outputs[0].dtype


@rule("weight-cast", family="types")
def weight_cast(evidence: Evidence) -> Iterator[Advice]:
    """A parameter that is cast whenever the model runs."""
    if evidence.is_train:
        return
    restoring = {op.index for op in evidence.restoring}
    for op in evidence.flow.named(_CAST):
        if _changes_type(op) and (wide := _wide_table(evidence, op)) is not None:
            yield wide
        if not _changes_type(op) or len(op.weights) != 1 or op.index in restoring:
            continue
        to, made = op.signature.outputs[0].dtype, op.signature.outputs[0].nbytes
        # Others may need it in its own type, as a mask or a position.
        users = evidence.weight_users[op.weights[0]]
        if any(not _changes_type(user) or user.signature.outputs[0].dtype != to for user in users):
            continue
        lost, how = 0.0, "the copy at every call goes away"
        reader = evidence.flow.only_reader(op)
        is_lookup = reader is not None and reader.category in ("embedding", "indexing") and "_bag" not in reader.op
        if reader is not None and is_lookup and reader.producers[0] == op.index:
            looked_up = reader.signature.outputs[0].nbytes
            if looked_up < made:
                yield Advice(
                    rule="weight-cast",
                    where=Where(op.module, (op.index,), op.weights[0]),
                    evidence={"from": op.signature.inputs[0].dtype, "to": to, "bytes_moved": moved(op)},
                    recommendation="look up the rows first, then cast them: each call casts the whole table",
                    change=None,
                    expected_gain=evidence.share([op]).gain(
                        0.9 * (1 - looked_up / made), 1 - looked_up / made, "the rows that are not looked up"
                    ),
                    risk="none: the same rows are cast",
                    confidence="high",
                )
                continue
        if made <= _CACHED:
            # The op behind the cast finds the copy in a cache; without the cast it reads as many bytes from memory. Of
            # the cast's predicted time 0.4 was saved (the median of 6 models of half weights, one core of a busy EPYC).
            lost, how = made / moved(op), f"{how}; the next op then reads from memory what the cast left in the cache"
        yield Advice(
            rule="weight-cast",
            where=Where(op.module, (op.index,), op.weights[0]),
            evidence={"from": op.signature.inputs[0].dtype, "to": to, "bytes_moved": moved(op)},
            recommendation="keep the parameter in the type it is used in: it is cast anew at every call",
            change=_kept(evidence, op.weights[0], to),
            expected_gain=evidence.share([op]).gain(1 - lost, 1 - lost * (1 - 1 / _CACHE_SPEED), how),
            risk="training updates a narrower parameter less exactly",
            confidence="high",
        )


def _wide_table(evidence: Evidence, op: OpRecord) -> Advice | None:
    """A table of which each lookup is cast to a narrower type: half of its bytes are never used."""
    rows = evidence.flow.source(op)
    if (
        rows is None
        or rows.category != "embedding"
        or not evidence.flow.is_kept_for(rows, op)
        or len(rows.weights) != 1
    ):
        return None
    table, to = evidence.params.get(rows.weights[0]), op.signature.outputs[0]
    is_narrower = to.is_floating and to.itemsize < op.signature.inputs[0].itemsize
    users = () if table is None else evidence.weight_users.get(table.name, ())
    readers = [evidence.flow.only_reader(user) for user in users if user.category == "embedding"]
    casts = [
        each
        for each in readers
        if each is not None and each.op == _CAST and each.signature.outputs[0].dtype == to.dtype
    ]
    # Every lookup must be cast; the first one speaks for all.
    if table is None or not is_narrower or len(casts) < len(users) or users[0] is not rows:
        return None
    spared = table.spec.nbytes * (1 - to.itemsize / op.signature.inputs[0].itemsize)
    return Advice(
        rule="weight-cast",
        where=Where(rows.module, (rows.index, op.index), table.name),
        evidence={"from": op.signature.inputs[0].dtype, "to": to.dtype, "table_bytes": table.spec.nbytes},
        recommendation="keep this table in the type that its rows are cast to: the wider one is never used",
        change=_kept(evidence, table.name, to.dtype),
        expected_gain=whole_gain(evidence, spared, spared, "the table in the narrower type"),
        risk="training updates a narrower parameter less exactly",
        confidence="high",
    )


def _kept(evidence: Evidence, name: str, to: str) -> Patch:
    param = evidence.params.get(name)
    kind = "buffer" if param is not None and param.is_buffer else "parameter"
    return Patch(f"tensor = model.get_{kind}(name)\ntensor.data = tensor.data.to(torch.{to})", ("name",), ((name,),))


@rule("type-promotion", family="types")
def type_promotion(evidence: Evidence) -> Iterator[Advice]:
    """A small tensor of a wider type that turns a large one into its own."""
    known: dict[int, tuple[TensorSpec, TensorSpec] | None] = {}
    for op in evidence.flow.of_category("elementwise"):
        # Equal calls share their signature, and all depends on that.
        shared = id(op.signature)
        found = known[shared] if shared in known else known.setdefault(shared, _promoted(op))
        if found is None:
            continue
        narrow, wide = found
        if wide.dtype == "float64":  # `double-precision` covers that
            continue
        after = _widened(evidence, op, wide.dtype)
        alone, all_of_them = evidence.share([op]).value, evidence.share([op, *after])
        spared = 1 - narrow.itemsize / wide.itemsize
        yield Advice(
            rule="type-promotion",
            where=Where(op.module, (op.index,)),
            evidence={"from": narrow.dtype, "to": wide.dtype, "op": op.op, "ops_after_in_wide_type": len(after)},
            recommendation="create the smaller operand in the type of the larger one: it widens the result",
            change=_kept(evidence, op.weights[0], narrow.dtype) if _is_only_promoted(evidence, op) else None,
            expected_gain=all_of_them.gain(
                spared * alone / max(all_of_them.value, 1e-12),
                spared,
                "the narrow type: for this op only (low), for all ops that take their type from it (high)",
            ),
            risk="the wider type may be intended: sums and norms often need it",
            confidence="medium",
        )


def _is_only_promoted(evidence: Evidence, op: OpRecord) -> bool:
    """Whether an op reads one parameter, which is nowhere needed in its wider type."""
    return len(op.weights) == 1 and all(map(_promoted, evidence.weight_users[op.weights[0]]))


def _widened(evidence: Evidence, op: OpRecord, dtype: str) -> list[OpRecord]:
    """The ops that are in the wide type because this one is, and not because of another operand."""
    found = {op.index: op}
    todo = [op]
    while todo:
        for user in evidence.flow.users(todo.pop()):
            read = zip(user.signature.inputs, user.producers, strict=False)
            is_due = all(source in found for spec, source in read if spec.dtype == dtype and spec.shape)
            if user.index not in found and user.signature.dtype == dtype and is_due:
                found[user.index] = user
                todo.append(user)
    return [step for index, step in sorted(found.items()) if index != op.index]


def _promoted(op: OpRecord) -> tuple[TensorSpec, TensorSpec] | None:
    """The narrow and the wide operand of a pointwise op, where the narrow one is the larger tensor."""
    floats = [spec for spec in op.signature.inputs if spec.is_floating and spec.shape]
    if op.op == _CAST or len({spec.dtype for spec in floats}) != 2:
        return None
    narrow = max((spec for spec in floats), key=lambda spec: spec.numel)
    wide = max((spec for spec in floats), key=lambda spec: spec.itemsize)
    is_promoted = narrow.itemsize < wide.itemsize and op.signature.outputs[0].dtype == wide.dtype
    return (narrow, wide) if is_promoted and not op.op.endswith("_") else None
