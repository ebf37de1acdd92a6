"""Whether a run can be captured in a CUDA graph and replayed with the same results."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchgauge.advise.code import Source, called
from torchgauge.advise.evidence import Evidence
from torchgauge.facts import OpRecord

# CUDA kernels whose code on the host waits for a value: the size of the result, a check of the arguments, a bound. Each
# of them could not be captured on an H200 with torch 2.11, which 30 other ops could, `multinomial` among them.
_WAITING_INSIDE = {
    "aten::_linalg_check_errors", "aten::_linalg_eigh", "aten::_linalg_svd", "aten::linalg_eig", "aten::linalg_lstsq",
    "aten::linalg_pinv", "aten::linalg_matrix_exp", "aten::_ctc_loss", "torchvision::nms", "aten::bincount",
}  # fmt: skip
# What code calls, from torch.cuda, to do without a wait while a graph is captured.
_CAPTURE_TEST = "is_current_stream_capturing"
_WRITES_AT = {"aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
_GROWS = {"append", "extend", "insert", "appendleft", "add", "update", "pop", "popleft"}
# Random numbers of Python and numpy are drawn once, while the graph is captured; a seed is set once.
_DRAWN_BY_HOST = ("random.", "np.random.", "numpy.random.", "torch.manual_seed", "torch.cuda.manual_seed")


def prevents_graph(evidence: Evidence) -> bool:
    """Whether a kernel waits for the host, also that of a sparse tensor, which may have to be put in order first, or
    whether Python does something in each call that a replay leaves out: it counts, draws numbers, or keeps a tensor
    for the next call. Packed sequences have the batch sizes of the lengths that they were captured with."""
    if any(op.op == "aten::_pack_padded_sequence" or _waits_inside(evidence, op) for op in evidence.forward):
        return True
    return any(_keeps_state(source, function) for source, function in _functions(evidence))


def is_avoided_in_graph(evidence: Evidence, at: OpRecord | str | None) -> bool:
    """Whether the function around a line asks if a graph is being captured, as `is_tracing()` of transformers does:
    what it waits for otherwise, as to look at the values of a mask, does not prevent a graph."""
    place = evidence.any_code_at(at)
    statement = None if place is None else place[0].statement(place[1])
    function = None if place is None else place[0].enclosing(statement, ast.FunctionDef)
    if place is None or function is None or evidence.model is None:
        return False
    names = {called(node) for node in ast.walk(function) if isinstance(node, ast.Call)}
    return _CAPTURE_TEST in names or evidence.model.leads_to(_CAPTURE_TEST, place[0].file, names)


def _waits_inside(evidence: Evidence, op: OpRecord) -> bool:
    given, inputs = op.signature.attributes, op.signature.inputs
    if op.op in _WAITING_INSIDE or any(spec.is_sparse for spec in inputs):
        return True
    if op.op == "aten::repeat_interleave":
        return op.signature.overload == "Tensor" and given.get("output_size") is None
    if op.op == "aten::histc":
        return bool(given.get("min") == given.get("max"))
    if op.op not in _WRITES_AT:
        return False
    # A single number of Python is filled in by the mask itself; one on the device is brought to the host for that.
    value = evidence.flow.source(op, len(inputs) - 1)
    is_number = inputs[-1].numel == 1 and (value is None or value.op == "aten::lift_fresh")
    return not is_number and any(evidence.dataflow.is_mask(op, at) for at in range(1, len(inputs) - 1))


def _functions(evidence: Evidence) -> Iterator[tuple[Source, ast.AST]]:
    """The functions of the model's code that run ops."""
    seen = set[ast.AST]()
    for line in dict.fromkeys(op.source for op in evidence.forward):
        place = evidence.code_at(line)
        statement = None if place is None else place[0].statement(place[1])
        function = None if place is None else place[0].enclosing(statement, ast.FunctionDef)
        if place is not None and function is not None and function not in seen:
            seen.add(function)
            yield place[0], function


def _keeps_state(source: Source, function: ast.AST) -> bool:
    """Whether a function reads an attribute that an earlier call has written, other than a table that it makes once, or
    draws random numbers on the host."""
    stored, loaded, grown = dict[str, int](), dict[str, int](), set[str]()
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and source.text(node.func).startswith(_DRAWN_BY_HOST):
            return True
        target = node.target if isinstance(node, ast.AugAssign) else None
        if isinstance(target, ast.Attribute) and source.text(target.value) == "self":
            return True
        name = source.text(node) if isinstance(node, ast.Attribute) else ""
        # Another tensor in a parameter: a replay reads the one that it was captured with, whose memory is free.
        if isinstance(node, ast.Attribute) and node.attr == "data" and isinstance(node.ctx, ast.Store):
            return True
        if not isinstance(node, ast.Attribute) or not name.startswith("self."):
            continue
        around = source.parents.get(node)
        if isinstance(around, ast.Attribute) and around.attr in _GROWS:
            grown.add(name)
        elif isinstance(node.ctx, ast.Load):
            loaded[name] = min(node.lineno, loaded.get(name, node.lineno))
        elif not source.is_kept(node.lineno):
            stored[name] = min(node.lineno, stored.get(name, node.lineno))
    is_read_first = any(loaded[name] <= line for name, line in stored.items() if name in loaded)
    return is_read_first or not grown.isdisjoint(loaded.keys() - stored.keys())
