"""Tensors that every call copies, element by element, from Python lists."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchgauge.advise.code import Source, called
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord

_MAKERS = ("tensor", "as_tensor", "LongTensor", "IntTensor", "FloatTensor", "DoubleTensor", "BoolTensor")
# Calls whose results follow from shapes and constants if their arguments do, and what may be asked of a tensor.
_PURE = {"range", "len", "list", "tuple", "int", "float", "min", "max", "abs", "sum", "enumerate", "zip", "reversed",
         "sorted", "round", "product", "combinations", "permutations"}  # fmt: skip
_OF_SHAPES = {"shape", "size", "ndim", "dim"}
# `torch.tensor` of a list of 100 to 10,000 numbers on one core of an EPYC, torch 2.13: 150 to 180 ns for an element,
# 250 from nested lists; other cores take half to twice as long.
_NS_PER_ELEMENT, _UNSURE = 160, (0.5, 2.0)
# Of a measured run; some of it is left to the ops.
_MOST_TIME_SHARE = 0.95
# The most assignments through which a name is followed.
_MOST_ASSIGNMENTS = 5
_LEAST_ELEMENTS = 16


@rule("table-from-list", family="constants")
def table_from_list(evidence: Evidence) -> Iterator[Advice]:
    """`torch.tensor([… for … in range(n)])` in a forward. The conversion is done outside of any op, so that no profile
    shows it; `recomputed-constant` covers the ops that follow from the table."""
    found = [op for op in evidence.forward if _is_table(evidence, op)]
    seconds = [op.signature.outputs[0].numel * _NS_PER_ELEMENT * 1e-9 for op in found]
    measured_s, ops_s, all_s = evidence.times.measured_s, evidence.times.total, sum(seconds)
    # A measured time of the run includes that of Python, the times of its ops do not.
    least, most = (measured_s or max(ops_s + times * all_s, 1e-12) for times in _UNSURE)
    is_hidden = evidence.is_cuda and not evidence.waits_for_host  # by what the device has to do
    for op, taken in zip(found, seconds, strict=True):
        made, low, high = op.signature.outputs[0], _UNSURE[0] * taken / least, _UNSURE[1] * taken / most
        how = f"{made.numel} numbers converted from Python at about {_NS_PER_ELEMENT} ns each"
        yield Advice(
            rule="table-from-list",
            where=Where(op.module, (op.index,)),
            evidence={"elements": made.numel, "bytes": made.nbytes},
            recommendation="make this table once, as a buffer: each call copies it from a Python list",
            change=None,
            expected_gain=Gain(
                "time_s", 0.0 if is_hidden else min(low, _MOST_TIME_SHARE), min(high, _MOST_TIME_SHARE), how
            ),
            risk="a buffer has a fixed size: keep one for each shape that occurs",
            confidence="medium",
        )


def _is_table(evidence: Evidence, op: OpRecord) -> bool:
    """Whether it is made of a list whose numbers follow from shapes and constants of the model."""
    is_fresh = op.op == "aten::lift_fresh" and op.signature.outputs[0].numel >= _LEAST_ELEMENTS
    if not is_fresh or op.index not in evidence.dataflow.constants or evidence.is_kept(op):
        return False
    place = evidence.code_at(op)
    if place is None:
        return False
    source, line = place
    calls = source.calls(line, *_MAKERS)
    if len(calls) != 1 or not calls[0].args:
        return False
    given = calls[0].args[0]
    is_list = isinstance(given, ast.List | ast.ListComp | ast.Name | ast.BinOp)
    is_list = is_list or (isinstance(given, ast.Call) and called(given) == "list")
    function = source.enclosing(given, ast.FunctionDef)
    return is_list and function is not None and _is_of_shapes(source, function, given, _MOST_ASSIGNMENTS)


def _is_of_shapes(source: Source, function: ast.FunctionDef, node: ast.AST, farthest: int) -> bool:
    """Whether an expression is made of numbers, shapes, and variables and attributes that are. Variables are looked up
    in the function, all of whose assignments count; a value that it was given may be anything."""
    asked = node.func if isinstance(node, ast.Call) else node
    if isinstance(asked, ast.Attribute) and asked.attr in _OF_SHAPES:
        return True
    if isinstance(node, ast.Attribute):
        is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
        return is_own and not _is_set_later(source, node.attr)
    if isinstance(node, ast.Call):
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        is_len = called(node) == "len" and isinstance(node.func, ast.Name)
        return called(node) in _PURE and (
            is_len or all(_is_of_shapes(source, function, each, farthest) for each in given)
        )
    if isinstance(node, ast.Name):
        values = list(_values(source, function, node.id))
        return (
            bool(values)
            and farthest > 0
            and all(value is not None and _is_of_shapes(source, function, value, farthest - 1) for value in values)
        )
    if isinstance(node, ast.Lambda | ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
        return False
    parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr | ast.comprehension)]
    return all(
        _is_of_shapes(source, function, part, farthest)
        for part in parts
        if not (isinstance(part, ast.expr) and isinstance(getattr(part, "ctx", None), ast.Store))
    )


def _values(source: Source, function: ast.FunctionDef, name: str) -> Iterator[ast.expr | None]:
    """What a variable of a function is made of: the values assigned and appended to it and what it runs over, None for
    an argument and for what is not known."""
    if any(isinstance(node, ast.arg) and node.arg == name for node in ast.walk(function)):
        yield None
    for node in ast.walk(function):
        if not isinstance(node, ast.Name) or node.id != name:
            continue
        around = source.parents[node]
        if isinstance(node.ctx, ast.Store):
            while isinstance(around, ast.Tuple | ast.List):
                around = source.parents[around]
            if isinstance(around, ast.For | ast.comprehension):
                yield around.iter
            else:
                yield around.value if isinstance(around, ast.Assign | ast.AugAssign | ast.AnnAssign) else None
        elif isinstance(around, ast.Call) and node in around.args and called(around) not in (*_PURE, *_MAKERS):
            yield None  # `shuffle(order)`
        elif isinstance(around, ast.Subscript) and around.value is node and not isinstance(around.ctx, ast.Load):
            yield None
        elif isinstance(around, ast.Attribute) and around.attr not in _OF_SHAPES:
            call = source.parents[around]
            is_added = around.attr in ("append", "extend")
            yield call.args[0] if is_added and isinstance(call, ast.Call) and len(call.args) == 1 else None


def _is_set_later(source: Source, attribute: str) -> bool:
    """Whether an attribute of that name is set or changed outside of the `__init__` methods of the file."""
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Attribute) and node.attr == attribute):
            continue
        outer = source.parents.get(node)
        is_called = isinstance(outer, ast.Attribute) and outer.attr in ("append", "extend", "insert", "pop", "clear")
        is_written = isinstance(outer, ast.Subscript) and isinstance(outer.ctx, ast.Store | ast.Del)
        if isinstance(node.ctx, ast.Load) and not is_called and not is_written:
            continue
        function = source.enclosing(outer, ast.FunctionDef)
        if function is None or function.name != "__init__":
            return True
    return False
