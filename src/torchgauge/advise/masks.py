"""Masks of attention: which of their elements are not zero, from the ops that make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.facts import OpRecord, TensorSpec

if TYPE_CHECKING:
    from torchgauge.advise.evidence import Evidence

# A softmax makes nothing of scores that are replaced by this or less.
_HIDDEN = -100.0
# "tril" or "triu" and a diagonal, as torch's functions take them.
Triangle = tuple[str, int]
SEEN: Triangle = ("tril", 0)  # keys up to the query's own position
HIDDEN: Triangle = ("triu", 1)
_COPIES = {"aten::clone", "aten::_to_copy", "aten::copy"}
# Ops that make a tensor of one number, or another number of each.
_UNIFORM = {f"aten::{name}" for name in ("ones", "full", "fill", "mul", "neg", "empty", "zeros", "bitwise_not", "eq")}
_BY_ROWS: dict[str, Triangle] = {
    "aten::ge": SEEN,
    "aten::gt": ("tril", -1),
    "aten::lt": HIDDEN,
    "aten::le": ("triu", 0),
}
_BY_COLUMNS = {"aten::le": "aten::ge", "aten::lt": "aten::gt", "aten::gt": "aten::lt", "aten::ge": "aten::le"}


def triangle(evidence: Evidence, op: OpRecord, place: int) -> Triangle | None:
    """Where a mask that is read there is not zero, if that is a triangle; None for others. A table of biases, a window
    or a prefix that is written into a triangle makes another mask of it."""
    made, read = evidence.flow.source(op, place), op.signature.inputs[place]
    if 1 in read.shape[-2:]:  # one row, column or element, as of an index where a slice was meant
        return None
    if made is None:
        names = [name for name in op.weights if len(_shape(evidence, name)) > 1]
        known = None if evidence.model is None or len(names) != 1 else evidence.model.triangle(names[0])
        return known if read.stride is None or _has_rows(read) else _turned(known)
    found = _made_triangle(evidence, made)
    return found if _has_rows(read) == _has_rows(made.signature.outputs[0]) else _turned(found)


def is_hiding(value: object) -> bool:
    """Whether the softmax makes 0 of scores with this value; unknown values of tensors are taken to be so."""
    return not isinstance(value, int | float) or value <= _HIDDEN


def fill_value(made: OpRecord | None) -> object:
    """The number that an op fills a tensor with; None where it is not known."""
    if made is None or "zero" in made.op:
        return None if made is None else 0.0
    return made.signature.attributes.get("s", made.signature.attributes.get("fill_value"))


def _made_triangle(evidence: Evidence, made: OpRecord) -> Triangle | None:
    name, values = made.op.rstrip("_"), made.signature.attributes
    other, sources = values.get("other"), [evidence.flow.source(made, at) for at in range(len(made.producers))]
    if name in ("aten::tril", "aten::triu"):
        near = [*sources, *evidence.dataflow.ancestors(made, len(_UNIFORM))]
        is_uniform = all(each is not None and _is_uniform(each, made) for each in near)
        return (name.removeprefix("aten::"), int(values.get("diagonal") or 0)) if is_uniform else None
    if name in _BY_ROWS and len(sources) == 2:
        return _compared(evidence, made, sources)
    if name == "aten::where" and len(sources) == 3:
        kept, filled = (fill_value(source) for source in sources[1:])
        found = triangle(evidence, made, 0)
        if kept == 0 and filled != 0 and is_hiding(filled):
            return _opposite(found)
        return found if filled == 0 and kept != 0 and is_hiding(kept) else None
    if name == "aten::masked_fill" and len(sources) > 1:
        value, found = values.get("value"), triangle(evidence, made, 1)
        if fill_value(sources[0]) == 0 and isinstance(value, int | float) and value:
            return found
        # `mask.masked_fill(mask == 0, -inf).masked_fill(mask == 1, 0)`
        before = sources[0]
        is_second = value == 0 and before is not None and before.op == "aten::masked_fill"
        is_hidden = is_second and before is not None and is_hiding(before.signature.attributes.get("value"))
        hidden = triangle(evidence, before, 1) if is_hidden and before is not None else None
        return hidden if hidden is not None and hidden == _opposite(found) else None
    if len(sources) != 1:
        return None
    found, is_number = triangle(evidence, made, 0), isinstance(other, int | float)
    if name in _COPIES or (name in ("aten::mul", "aten::div") and is_number and other) or name == "aten::neg":
        return found
    if name in ("aten::logical_not", "aten::bitwise_not"):
        return _opposite(found) if name == "aten::logical_not" or made.signature.dtype == "bool" else None
    if (name in ("aten::rsub", "aten::sub") and other == 1) or (name == "aten::eq" and is_number and not other):
        return _opposite(found)
    is_other = (name == "aten::eq" and is_number) or (name in ("aten::ne", "aten::gt", "aten::lt") and other == 0)
    return found if is_other else None


def _compared(evidence: Evidence, made: OpRecord, sources: list[OpRecord | None]) -> Triangle | None:
    """Of positions of queries with positions of keys, both counted from 0."""
    first, second = sources
    if first is None or second is None or not first.op == second.op == "aten::arange":
        return None
    is_same = evidence.dataflow.call_number(first) == evidence.dataflow.call_number(second)
    shapes = [(1, *spec.shape)[-2:] for spec in made.signature.inputs]
    if not is_same or 1 not in shapes[0] or shapes[0] != shapes[1][::-1]:
        return None
    return _BY_ROWS[made.op if shapes[0][1] == 1 else _BY_COLUMNS[made.op]]


def _is_uniform(op: OpRecord, made: OpRecord) -> bool:
    """Whether it gives all elements of the tensor that `made` reads one value."""
    name = op.op.rstrip("_").removesuffix("_like").replace("::new_", "::")
    is_one = sum(spec.numel > 1 for spec in op.signature.inputs) <= 1
    is_whole = bool(op.signature.outputs) and op.signature.outputs[0].numel >= made.signature.inputs[0].distinct_numel
    return is_one and is_whole and (name in _UNIFORM or name in _COPIES)


def _opposite(found: Triangle | None) -> Triangle | None:
    if found is None:
        return None
    side, diagonal = found
    return ("triu", diagonal + 1) if side == "tril" else ("tril", diagonal - 1)


def _turned(found: Triangle | None) -> Triangle | None:
    return None if found is None else ("triu" if found[0] == "tril" else "tril", -found[1])


def _has_rows(spec: TensorSpec) -> bool:
    """Whether rows lie one after the other in memory, and not columns."""
    return spec.stride is None or len(spec.stride) < 2 or spec.stride[-2] == 0 or spec.stride[-2] >= spec.stride[-1]


def _shape(evidence: Evidence, name: str) -> tuple[int, ...]:
    return evidence.params[name].spec.shape if name in evidence.params else ()
