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
_CONVOLUTION_ARGUMENTS = (
    "input", "weight", "bias", "stride", "padding", "dilation", "transposed", "output_padding", "groups",
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
    """With the name and the arguments under which a trace shows the op: every convolution is one and the same there."""
    schema = getattr(call.func, "_schema", None)
    if schema is None:  # a higher-order op
        kind, arguments = str(call.func), [_described(argument) for argument in call.args]
    else:
        given: dict[str, Any] = {}
        for index, argument in enumerate(schema.arguments):
            default = argument.default_value if argument.has_default_value() else None
            value = call.args[index] if index < len(call.args) else call.kwargs.get(argument.name, default)
            given[argument.name] = _described(value)
        kind, arguments = schema.name, list(given.values())
        if kind in CONVOLUTIONS:
            defaults = {"transposed": "transpose" in kind, "output_padding": [0]}
            shown = [given.get(name, defaults.get(name)) for name in _CONVOLUTION_ARGUMENTS]
            kind, arguments = "aten::_convolution", [*shown, *_CONVOLUTION_FLAGS]
    numbered = [(str(place), argument) for place, argument in enumerate(arguments)]
    return Node(kind, numbered, _results(call), scopes, call.macs)


def function_node(call: FunctionCall, scopes: tuple[str, ...], inside: tuple[Node, ...]) -> Node:
    """As a trace shows it: by the name of the class, with the tensors among its arguments alone."""
    arguments = [(name, _described(tensor)) for name, tensor in call.tensors]
    kind = f"prim::PythonOp.{call.function.__name__}"
    return Node(kind, arguments, _results(call), scopes, sum(node.macs for node in inside), inside)


def _results(call: OpCall | FunctionCall) -> list[Any]:
    results = call.result if isinstance(call.result, list | tuple) else [call.result]
    return [_described(result) for result in results]


def _described(value: object) -> Any:
    described = describe_value(value)
    return value if isinstance(described, str) else described
