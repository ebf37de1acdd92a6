"""Op calls with the reading interface of a traced graph, which handles are written against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchgauge.capture.recorder import describe_value
from torchgauge.compat.observed import FunctionCall, OpCall
from torchgauge.facts import TensorSpec

CONVOLUTIONS = frozenset(
    ("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::conv_transpose1d", "aten::conv_transpose2d",
     "aten::conv_transpose3d", "aten::convolution", "aten::_convolution", "aten::_convolution_mode")
)  # fmt: skip
# benchmark, deterministic, cudnn_enabled, allow_tf32: what a trace shows at the end of every convolution.
_CONVOLUTION_FLAGS = (False, False, True, True)


class ValueType:
    """The type of a tensor value."""

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec

    def sizes(self) -> list[int]:
        return list(self._spec.shape)

    def dim(self) -> int:
        return len(self._spec.shape)

    def scalarType(self) -> str:  # noqa: N802 - torch's name
        return self._spec.dtype


class Value:
    """An argument or a result, as `torch._C.Value` shows it."""

    def __init__(self, value: object, node: Node | ListNode | None = None, name: str = "") -> None:
        self._value = value
        self._node = node
        self._name = name

    def debugName(self) -> str:  # noqa: N802 - torch's name
        """The variable that an autograd function was given; of other values a number."""
        return self._name or "0"

    def isCompleteTensor(self) -> bool:  # noqa: N802 - torch's name
        return isinstance(self._value, TensorSpec)

    def type(self) -> ValueType:
        if not isinstance(self._value, TensorSpec):
            raise TypeError(f"{self._value!r} is not a tensor and has no sizes")
        return ValueType(self._value)

    def toIValue(self) -> Any:  # noqa: N802 - torch's name
        return None if isinstance(self._value, TensorSpec) else self._value

    def node(self) -> Node | ListNode | None:
        """The op a result came from; for a list, what put it together."""
        return ListNode(self._value) if isinstance(self._value, list) else self._node


class ListNode:
    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def kind(self) -> str:
        return "prim::ListConstruct"

    def inputs(self) -> list[Value]:
        return [Value(item) for item in self._items]


@dataclass(frozen=True, slots=True)
class Node:
    """One call of an op or of an autograd function; `scopes` are the names of the modules that were running, the root
    first, `inside` the ops that a function ran."""

    _kind: str
    _arguments: list[tuple[str, Any]]  # by the names that values have in the code
    _results: list[Any]
    scopes: tuple[str, ...]
    macs: int
    inside: tuple[Node, ...] = ()

    def kind(self) -> str:
        return self._kind

    def inputs(self) -> list[Value]:
        return [Value(argument, name=name) for name, argument in self._arguments]

    def outputs(self) -> list[Value]:
        return [Value(result, self) for result in self._results]

    def scopeName(self) -> str:  # noqa: N802 - torch's name
        return "/".join(self.scopes)


def op_node(call: OpCall, scopes: tuple[str, ...]) -> Node:
    kind, arguments = _as_traced(call)
    return Node(
        kind, [(str(place), argument) for place, argument in enumerate(arguments)], _results(call), scopes, call.macs
    )


def function_node(call: FunctionCall, scopes: tuple[str, ...], inside: tuple[Node, ...]) -> Node:
    """As a trace shows it: by the name of the class, with the tensors among its arguments alone."""
    arguments = [(name, _described(tensor)) for name, tensor in call.tensors]
    kind = f"prim::PythonOp.{call.function.__name__}"
    return Node(kind, arguments, _results(call), scopes, sum(node.macs for node in inside), inside)


def _results(call: OpCall | FunctionCall) -> list[Any]:
    results = call.result if isinstance(call.result, list | tuple) else [call.result]
    return [_described(result) for result in results]


def _as_traced(call: OpCall) -> tuple[str, list[Any]]:
    """The name and the arguments under which a trace shows the op: every convolution is one and the same there."""
    schema = getattr(call.func, "_schema", None)
    if schema is None:  # a higher-order op
        return str(call.func), [_described(argument) for argument in call.args]
    bound = {argument.name: _given(call, index, argument) for index, argument in enumerate(schema.arguments)}
    described = {name: _described(value) for name, value in bound.items()}
    if schema.name in CONVOLUTIONS:
        return "aten::_convolution", _convolution(schema.name, described)
    return schema.name, list(described.values())


def _given(call: OpCall, index: int, argument: Any) -> Any:
    if index < len(call.args):
        return call.args[index]
    return call.kwargs.get(argument.name, argument.default_value if argument.has_default_value() else None)


def _described(value: object) -> Any:
    described = describe_value(value)
    return value if isinstance(described, str) else described


def _convolution(name: str, given: dict[str, object]) -> list[Any]:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "transposed", "output_padding", "groups")
    defaults = {"transposed": "transpose" in name, "output_padding": [0]}
    return [given.get(key, defaults.get(key)) for key in names] + list(_CONVOLUTION_FLAGS)
