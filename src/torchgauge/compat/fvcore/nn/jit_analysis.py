"""Counts of ops by module and operator, from one pass over the model: its op calls, each with the modules it ran in.
A call has the reading interface of a traced graph, which handles are written against."""

from __future__ import annotations

import logging
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import nn
from torch.jit._trace import TracerWarning

from torchgauge import capture
from torchgauge.capture.recorder import describe_value
from torchgauge.compat.fvcore.nn.jit_handles import Handle
from torchgauge.compat.observed import FunctionCall, Observer, OpCall, observe, own_error, require_module
from torchgauge.errors import TorchgaugeError
from torchgauge.facts import TensorSpec, enclosing_paths

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

    def toIValue(self) -> object:  # noqa: N802 - torch's name
        return None if isinstance(self._value, TensorSpec) else self._value

    def node(self) -> Node | ListNode | None:
        """The op a result came from; for a list, what put it together."""
        return ListNode(self._value) if isinstance(self._value, list) else self._node


class ListNode:
    def __init__(self, items: list[object]) -> None:
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
    _arguments: list[tuple[str, object]]  # by the names that values have in the code
    _results: list[object]
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
    """The op with the name and the arguments of a trace, in which all convolutions are one op."""
    schema = getattr(call.func, "_schema", None)
    if schema is None:  # a higher-order op
        kind, arguments = str(call.func), [_described(argument) for argument in call.args]
    else:
        given: dict[str, object] = {}
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


def _results(call: OpCall | FunctionCall) -> list[object]:
    results = call.result if isinstance(call.result, list | tuple) else [call.result]
    return [_described(result) for result in results]


def _described(value: object) -> object:
    described = describe_value(value)
    return value if isinstance(described, str) else described


class Trace(Observer):
    """`nodes` in the order of execution; `called` are the names of the modules that ran."""

    def __init__(self) -> None:
        self.begin(nn.Module())

    def begin(self, root: nn.Module) -> None:
        self.nodes: list[Node] = []
        self.called: set[str] = set()
        # The first name of a module is the one it is known by.
        self._names = {id(module): name for name, module in root.named_modules()}
        self._running: list[str] = []
        # The nodes of what autograd functions are inside.
        self._outside: list[list[Node]] = []

    def enter(self, module: nn.Module) -> None:
        # Ops of a module of another model belong to its caller.
        name = self._names.get(id(module), self._running[-1] if self._running else "")
        self._running.append(name)
        self.called.add(name)

    def leave(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        self._running.pop()

    def fail(self, module: nn.Module) -> None:
        self._running.pop()

    def op(self, call: OpCall) -> None:
        self.nodes.append(op_node(call, tuple(self._running) or ("",)))

    def enter_function(self) -> None:
        self._outside.append(self.nodes)
        self.nodes = []

    def leave_function(self, call: FunctionCall | None) -> None:
        inside, self.nodes = tuple(self.nodes), self._outside.pop()
        if call is not None:
            # In the form of a trace: by the name of the class, with only the tensors among its arguments.
            arguments = [(name, _described(tensor)) for name, tensor in call.tensors]
            kind, scopes = f"prim::PythonOp.{call.function.__name__}", tuple(self._running) or ("",)
            macs = sum(node.macs for node in inside)
            self.nodes.append(Node(kind, arguments, _results(call), scopes, macs, inside))


def trace(model: nn.Module, inputs: torch.Tensor | tuple[object, ...]) -> tuple[Trace, capture.Trace]:
    """Run the model in the mode it is in; it raises what the model raises."""
    found = Trace()
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    try:
        return found, observe(model, args, {}, found, whole=True)
    except TorchgaugeError as error:
        raise own_error(error) from None


_logger = logging.getLogger(__name__)
# These hold modules and are never called, or have a forward that does nothing.
_NOT_CALLED = (nn.ModuleList, nn.ModuleDict, nn.Module, nn.Identity)


_NAMES = (
    "__and__", "arange", "bitwise_not", "cat", "chunk", "clamp", "clamp_", "constant_pad_nd", "contiguous", "copy_",
    "detach", "dropout", "empty", "eq", "expand", "flatten", "floor", "floor_divide", "full", "full_like", "gather",
    "ge", "gt", "index", "index_put_", "lift_fresh", "masked_fill", "max", "narrow", "new_empty", "new_full",
    "new_zeros", "nonzero", "ones", "permute", "relu", "relu_", "remainder", "reshape", "roll", "select", "slice",
    "split", "split_with_sizes", "squeeze", "stack", "t", "to", "transpose", "type_as", "unbind", "unsqueeze",
    "unsqueeze_", "view", "zeros", "zeros_like",
)  # fmt: skip
# Marks for a profiler, such as `nn.DataParallel` sets; a trace does not show them.
_MARKS = ("_record_function_enter", "_record_function_enter_new", "_record_function_exit")
_IGNORED_OPS = {*(f"aten::{name}" for name in _NAMES), *(f"profiler::{name}" for name in _MARKS)}


def _named_modules_with_dup(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Modules with their names; one that is registered twice has both."""
    return model.named_modules(prefix=prefix, remove_duplicate=False)


class Graph:
    """The calls of a pass, as `torch._C.Graph` shows them."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes

    def nodes(self) -> Iterator[Node]:
        return iter(self._nodes)


# Private in fvcore too, but scripts that make a pass of their own import it.
def _get_scoped_trace_graph(
    module: nn.Module, inputs: torch.Tensor | tuple[object, ...], aliases: Mapping[str | nn.Module, str]
) -> Graph:
    """The ops of one pass; `aliases` has the name of each module, which becomes the scope of its ops."""
    found, _ = trace(module, inputs)
    names = {name: aliases[inner] for name, inner in module.named_modules()}
    return Graph([replace(node, scopes=tuple(names[scope] for scope in node.scopes)) for node in found.nodes])


TRACER_WARNINGS = ("all", "no_tracer_warning", "none")
ANCESTOR_MODES = ("owner", "caller")


@dataclass(frozen=True, slots=True)
class Statistics:
    counts: dict[str, Counter[str]]
    unsupported_ops: dict[str, Counter[str]]
    uncalled_mods: set[str]


class JitModelAnalysis:
    """Sums the counts of handles for every module. The pass runs when a figure is first asked for, and again when a
    handle has changed. The model is called "", what it holds "child.grandchild"."""

    def __init__(self, model: nn.Module, inputs: torch.Tensor | tuple[object, ...]) -> None:
        require_module(model)
        self._model = model
        self._inputs = inputs
        self._op_handles: dict[str, Handle] = {}
        self._ignored_ops: set[str] = set(_IGNORED_OPS)
        self._counts_others = False
        self._stats: Statistics | None = None
        # The first name of every module, by the module and by each of its names.
        self._aliases: dict[str | nn.Module, str] = {}
        for name, module in _named_modules_with_dup(model):
            self._aliases[name] = self._aliases.setdefault(module, name)
        self._enable_warn_unsupported_ops = True
        self._enable_warn_uncalled_mods = True
        self._warn_trace = "no_tracer_warning"
        self._ancestor_mode = "owner"

    def total(self, module_name: str = "") -> int:
        return sum(self.by_operator(module_name).values())

    def by_operator(self, module_name: str = "") -> Counter[str]:
        return self._analyze().counts[self.canonical_module_name(module_name)]

    def by_operator_in(self, unit: float) -> tuple[defaultdict[str, float], Counter[str]]:
        """The counts of the model in a larger unit, and its unsupported ops."""
        counts = {op: count / unit for op, count in self.by_operator().items()}
        return defaultdict(float, counts), self.unsupported_ops()

    def by_module_and_operator(self) -> dict[str, Counter[str]]:
        return self._analyze().counts

    def by_module(self) -> Counter[str]:
        return Counter({name: sum(counts.values()) for name, counts in self._analyze().counts.items()})

    def unsupported_ops(self, module_name: str = "") -> Counter[str]:
        """How often ops were met that nothing counts; ask for a count first."""
        if self._stats is None:
            raise RuntimeError("nothing has been counted yet: call total() or by_module() before unsupported_ops()")
        return self._stats.unsupported_ops[self.canonical_module_name(module_name)]

    def uncalled_modules(self) -> set[str]:
        return self._analyze().uncalled_mods

    def set_op_handle(self, *args: Any, **kwargs: Handle | None) -> Self:
        """Take handles for ops: pairs of name and handle, or a mapping. None makes an op free."""
        if len(args) % 2:
            raise TypeError("set_op_handle takes pairs: a name and its handle, a name and its handle, …")
        self._stats = None
        for name, handle in (kwargs | dict(zip(args[::2], args[1::2], strict=True))).items():
            if handle is None:
                self._op_handles.pop(name, None)
                self._ignored_ops.add(name)
            else:
                self._op_handles[name] = handle
        return self

    def clear_op_handles(self) -> Self:
        """Count nothing, until handles are set."""
        self._op_handles = {}
        self._ignored_ops = set(_IGNORED_OPS)
        self._counts_others = False
        self._stats = None
        return self

    def canonical_module_name(self, name: str) -> str:
        """The first of the names of a module, under which its figures are given."""
        if not isinstance(name, str):
            raise AssertionError(f"a module is asked for by its name, not by a {type(name).__name__}")
        if name not in self._aliases:
            raise KeyError(f"the model has no module '{name}'")
        return self._aliases[name]

    def copy(
        self, new_model: nn.Module | None = None, new_inputs: torch.Tensor | tuple[object, ...] | None = None
    ) -> JitModelAnalysis:
        """The same settings, for another model or other inputs."""
        inputs = self._inputs if new_inputs is None else new_inputs
        other = JitModelAnalysis(new_model or self._model, inputs)
        for name in ("_op_handles", "_ignored_ops"):
            setattr(other, name, copy(getattr(self, name)))
        for name in (
            "_counts_others", "_enable_warn_unsupported_ops", "_enable_warn_uncalled_mods", "_warn_trace",
            "_ancestor_mode",
        ):  # fmt: skip
            setattr(other, name, getattr(self, name))
        return other

    def tracer_warnings(self, mode: str) -> Self:
        """Which warnings of the pass are shown: "all", "no_tracer_warning" (the default) or "none"."""
        self._warn_trace = _one_of(mode, TRACER_WARNINGS)
        return self

    def ancestor_mode(self, mode: str) -> Self:
        """An op counts for the modules that hold the one it ran in ("owner"), or for all that were running ("caller").

        They differ where a module is shared, or a method other than `forward` is called.
        """
        self._ancestor_mode = _one_of(mode, ANCESTOR_MODES)
        self._stats = None
        return self

    def unsupported_ops_warnings(self, enabled: bool) -> Self:
        self._enable_warn_unsupported_ops = enabled
        return self

    def uncalled_modules_warnings(self, enabled: bool) -> Self:
        self._enable_warn_uncalled_mods = enabled
        return self

    def _analyze(self) -> Statistics:
        if self._stats is not None:
            return self._stats
        found, names = self._trace(), set(self._aliases.values())
        counts: dict[str, Counter[str]] = {name: Counter() for name in self._aliases.values()}
        unsupported: dict[str, Counter[str]] = {name: Counter() for name in self._aliases.values()}
        for node, counted in self._counted(found.nodes):
            for name in self._ancestors(node):
                if counted is None:
                    unsupported[name][node.kind()] += 1
                else:
                    counts[name] += counted
        owners = {owner for name in found.called for owner in enclosing_paths(name)} if self._is_owned else set()
        self._stats = Statistics(counts, unsupported, names - found.called - owners)
        if self._enable_warn_unsupported_ops:
            for op, times in unsupported[""].items():
                _logger.warning("Unsupported operator %s encountered %d time(s)", op, times)
        modules, skipped = dict(self._model.named_modules()), {kind.forward for kind in _NOT_CALLED}
        uncalled = sorted(n for n in self._stats.uncalled_mods if type(modules[n]).forward not in skipped)
        if self._enable_warn_uncalled_mods and uncalled:
            _logger.warning(
                "These modules were never called, or only through other methods than forward; what they did then "
                "counts for their callers: %s",
                ", ".join(uncalled),
            )
        return self._stats

    def _trace(self) -> Trace:
        with warnings.catch_warnings():
            if self._warn_trace == "none":
                warnings.simplefilter("ignore")
            elif self._warn_trace == "no_tracer_warning":
                warnings.simplefilter("ignore", TracerWarning)
            found, traced = trace(self._model, self._inputs)
            if traced.run.reason is not None:
                warnings.warn(f"the counts are those of these inputs: {traced.run.reason}", TracerWarning, 4)
        return found

    def _counted(self, nodes: Iterable[Node]) -> Iterator[tuple[Node, Counter[str] | None]]:
        """The nodes that count or are unsupported. An autograd function without a handle counts what runs inside it;
        where nothing there counts (a kernel that is not an op of torch), the function is what is unsupported."""
        for node in nodes:
            counted = self._count(node)
            if counted is not None:
                yield node, counted
                # As in fvcore: a handle covers the ops inside, except another function that has a handle.
                functions = (inner for inner in node.inside if inner.kind().startswith("prim::PythonOp."))
                yield from self._counted(inner for inner in functions if inner.kind() in self._op_handles)
                continue
            inside = list(self._counted(node.inside))
            if any(counts and counts.total() for _, counts in inside):
                yield from inside
            else:
                yield node, None

    @property
    def _is_owned(self) -> bool:
        return self._ancestor_mode == "owner"

    def _ancestors(self, node: Node) -> set[str]:
        return set(enclosing_paths(node.scopes[-1])) if self._is_owned else {"", *node.scopes}

    def _count(self, node: Node) -> Counter[str] | None:
        """The counts of the op by name; None where nothing counts it."""
        import numpy as np

        kind = node.kind()
        handle = self._op_handles.get(kind)
        if handle is not None:
            found = handle(node.inputs(), node.outputs())
            counted = Counter(found) if isinstance(found, Mapping) else Counter({_short(kind): found})
            for value in counted.values():
                if not isinstance(value, int | float | np.float64 | np.int64):
                    name = type(value).__name__
                    raise ValueError(f"a handle returned a {name}: a narrow type may overflow, return an int")
            return counted
        if kind in self._ignored_ops:
            return Counter()
        counts_itself = self._counts_others and node.macs and not node.inside
        return Counter({_short(kind): node.macs}) if counts_itself else None


def _short(kind: str) -> str:
    """`aten::batch_norm` -> `batch_norm`."""
    return kind.partition("::")[2] or kind


def _one_of(mode: str, known: tuple[str, ...]) -> str:
    if mode not in known:
        raise ValueError(f"no mode '{mode}'; one of: {', '.join(known)}")
    return mode
