"""The function behind a node that is an operator: Python's own for plain values, else torch's by the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from torchgauge.capture.script.builtins import BUILTINS
from torchgauge.capture.script.onednn import ONEDNN
from torchgauge.capture.script.program import Unsupported
from torchgauge.capture.script.tensor_questions import QUESTIONS, as_tensor, make_tensor, number_to_tensor
from torchgauge.capture.script.texts import require_spelled_length
from torchgauge.errors import ForwardError
from torchgauge.source.allowed_ops import find_operator, is_denied
from torchgauge.source.pieces import bounded

_MAKERS: dict[str, Callable[..., Any]] = {
    "aten::tensor": make_tensor,
    "aten::as_tensor": as_tensor,
    "prim::NumToTensor": number_to_tensor,
}
_NESTING = (list, tuple, dict)
_TENSORS = ("Tensor", "Optional[Tensor]")


def operator_of(node: Any) -> Callable[..., Any]:
    kind = node.kind()
    if kind in ONEDNN:
        return ONEDNN[kind]
    text = node.schema()
    if text.startswith("(") or "(...)" in text:  # "(no schema)": the number of arguments varies
        found = BUILTINS.get(kind)
        if found is None:
            raise Unsupported(kind)
        return found
    return _by_schema(text)


@cache
def _by_schema(text: str) -> Callable[..., Any]:
    schema = torch._C.parse_schema(text)
    name = schema.name
    asks_tensor = bool(schema.arguments) and str(schema.arguments[0].type) in _TENSORS
    found = _MAKERS.get(name) or (QUESTIONS if asks_tensor else BUILTINS).get(name)
    return found or _dispatched(schema)


def _refuse(op: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> None:
        raise ForwardError(f"the graph calls {op}, which has effects outside the model, so it is not run")

    return refuse


def _dispatched(schema: Any) -> Callable[..., Any]:
    if is_denied(schema.name):
        return _refuse(schema.name)
    function = find_operator(schema.name, schema.overload_name or "default")
    if function is None:
        raise Unsupported(schema.name)
    run = bounded(schema.name, function)
    keywords = tuple(argument.name for argument in schema.arguments if argument.kwarg_only)
    positional = len(schema.arguments) - len(keywords)

    def call(*args: Any) -> Any:
        for value in args:
            # Handing it to torch copies every list in it as often as it occurs.
            if type(value) in _NESTING and value and type(next(iter(value))) in _NESTING:
                require_spelled_length(value)
        return run(*args[:positional], **dict(zip(keywords, args[positional:], strict=True)))

    return call
